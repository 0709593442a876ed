"""The arithmetic of one advantage in numbers, for estimators whose formula has room for them on a line.

Each writer gives lines and the number they come to. A line is only shown if that is the number the estimator gave.
Where tokens have advantages of their own, the line is about their mean. gae is shown by formula and result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from rollbook.components.advantages.base import AdvantageEstimator, AdvantageInputs, FloatArray
from rollbook.components.advantages.moments import (
    WHITENING_STD,
    Moments,
    moments_of,
    normalizing,
    std_of,
    whitening,
)
from rollbook.components.advantages.per_token import discounted_sums

WRITTEN_MEMBERS = 16
"""Rewards of a group that are written one by one; of more there is only the number."""
CLOSE = 1e-9

Lines = tuple[list[str], float]
Writer = Callable[[Any, AdvantageInputs, int, Moments], Lines]


def written_out(
    estimator: AdvantageEstimator, seen: AdvantageInputs, row: int, advantage: float
) -> list[str]:
    """The arithmetic, or nothing where it cannot be written on a few lines or comes to another number.

    Args:
        estimator: with its settings.
        seen: what it was given.
        row: of the rollout.
        advantage: that it gave the rollout.
    """
    if math.isnan(seen.rewards[row]):
        return ["it has no reward, so it is left out of its group and its advantage is 0"]
    write = WRITERS.get((type(estimator).__module__.rpartition(".")[2], type(estimator).__name__))
    if (
        write is None
        or type(estimator).__module__.rpartition(".")[0] != "rollbook.components.advantages"
    ):
        return []
    moments = moments_of(seen.rewards, seen.groups, getattr(estimator, "std_ddof", 0))
    lines, value = write(estimator, seen, row, moments)
    return lines if math.isclose(value, advantage, rel_tol=CLOSE, abs_tol=CLOSE) else []


def number(value: float) -> str:
    """Six digits; a missing one is a dash."""
    return "–" if math.isnan(value) else f"{value:.6g}"


def _members(seen: AdvantageInputs, row: int) -> FloatArray:
    """Rewards of the rollout's group, its own among them, without those that are missing."""
    rewards = seen.rewards[seen.groups == seen.groups[row]]
    return rewards[~np.isnan(rewards)]


def _listed(values: Iterable[float]) -> str:
    found = list(values)
    if len(found) > WRITTEN_MEMBERS:
        return f"{len(found)} rewards"
    return ", ".join(map(number, found))


def _mean_line(seen: AdvantageInputs, row: int, moments: Moments) -> str:
    return f"μ = mean({_listed(_members(seen, row))}) = {number(moments.mean[row])}"


def _no_signal(seen: AdvantageInputs, row: int) -> Lines:
    if len(_members(seen, row)) == 1:
        return ["no other answer to this prompt has a reward: nothing to compare with, A = 0"], 0.0
    return [
        f"all rewards of its group are {number(float(seen.rewards[row]))}: no signal, A = 0"
    ], 0.0


def _signed(value: float) -> str:
    return f"{value:+.6g}"


def _less(reward: float, what: float) -> str:
    return f"({number(reward)} − {_bracketed(what)})"


def _bracketed(value: float) -> str:
    return f"({number(value)})" if value < 0 else number(value)


def _divisor(factor: float) -> str:
    return number(1 / factor) if factor else "∞"


def _group(estimator: Any, seen: AdvantageInputs, row: int, moments: Moments) -> Lines:
    if not moments.spread[row]:
        return _no_signal(seen, row)
    reward, mean = float(seen.rewards[row]), float(moments.mean[row])
    lines = [_mean_line(seen, row, moments)]
    if estimator.scale == "none":
        return [
            *lines,
            f"A = {number(reward)} − {_bracketed(mean)} = {_signed(reward - mean)}",
        ], reward - mean
    std, of = float(moments.std[row]), "of the same rewards"
    if estimator.scale == "batch":
        std = std_of(seen.rewards, estimator.std_ddof)
        of = f"of all {int(seen.scorable.sum())} rewards of the iteration"
    value = (reward - mean) / (std + estimator.eps)
    return [
        *lines,
        f"σ = {number(std)}, the {'sample' if estimator.std_ddof else 'population'} deviation {of}",
        f"A = {_less(reward, mean)} / ({number(std)} + {estimator.eps:g}) = {_signed(value)}",
    ], value


def _leave_one_out(estimator: Any, seen: AdvantageInputs, row: int, moments: Moments) -> Lines:
    if not moments.spread[row]:
        return _no_signal(seen, row)
    reward = float(seen.rewards[row])
    count = int(moments.count[row])
    others = (float(moments.mean[row]) * count - reward) / (count - 1)
    value = reward - others
    lines = [
        f"mean of the {count - 1} other rewards = {number(others)}",
        f"A = {number(reward)} − {_bracketed(others)} = {_signed(value)}",
    ]
    if not estimator.normalize:
        return lines, value
    raw = np.zeros(len(seen.rewards))
    signal = moments.spread & seen.scorable
    counts = moments.count[signal]
    raw[signal] = (seen.rewards[signal] - moments.mean[signal]) * counts / (counts - 1)
    mean, factor = normalizing(
        raw[seen.scorable & (moments.count > 1)], estimator.std_ddof, estimator.eps
    )
    last = (value - mean) * factor
    return [
        *lines,
        f"A ← ({_signed(value)} − {_bracketed(mean)}) / {_divisor(factor)} = {_signed(last)}, "
        "by mean and deviation of all advantages of the iteration",
    ], last


def _max_rl(estimator: Any, seen: AdvantageInputs, row: int, moments: Moments) -> Lines:
    if not moments.spread[row]:
        return _no_signal(seen, row)
    reward, mean = float(seen.rewards[row]), float(moments.mean[row])
    if mean <= 0:
        return [
            _mean_line(seen, row, moments),
            "μ is not above 0: nothing to learn from, A = 0",
        ], 0.0
    value = (reward - mean) / (mean + estimator.eps)
    return [
        _mean_line(seen, row, moments),
        f"A = {_less(reward, mean)} / ({number(mean)} + {estimator.eps:g}) = {_signed(value)}",
    ], value


def _gpg(estimator: Any, seen: AdvantageInputs, row: int, moments: Moments) -> Lines:
    if not moments.spread[row]:
        return _no_signal(seen, row)
    known = seen.unpenalized[seen.scorable]
    scored = max(int(np.count_nonzero(known)), 1)
    reward, mean = float(seen.rewards[row]), float(moments.mean[row])
    value = len(known) / scored * (reward - mean)
    return [
        _mean_line(seen, row, moments),
        f"of {len(known)} rewards of the iteration {scored} are not 0",
        f"A = {len(known)} / {scored} · {_less(reward, mean)} = {_signed(value)}",
    ], value


def _opo(estimator: Any, seen: AdvantageInputs, row: int, moments: Moments) -> Lines:
    if not moments.spread[row]:
        return _no_signal(seen, row)
    mine = (seen.groups == seen.groups[row]) & seen.scorable
    lengths, rewards = seen.lengths[mine], seen.rewards[mine]
    total = int(lengths.sum())
    if not total:
        return ["no answer of the group has tokens to train on: A = 0"], 0.0
    baseline = float((lengths * rewards).sum() / total)
    value = float(seen.rewards[row]) - baseline
    terms = " + ".join(f"{n} · {number(r)}" for n, r in zip(lengths, rewards, strict=True))
    shown = terms if len(rewards) <= WRITTEN_MEMBERS else "tokens · reward"
    return [
        f"mean reward of the group's tokens = ({shown}) / {total} = {number(baseline)}",
        f"A = {number(float(seen.rewards[row]))} − {_bracketed(baseline)} = {_signed(value)}",
    ], value


def _pass_at_k(estimator: Any, seen: AdvantageInputs, row: int, moments: Moments) -> Lines:
    if not moments.spread[row]:
        return _no_signal(seen, row)
    second, best = np.sort(_members(seen, row))[-2:]
    reward = float(seen.rewards[row])
    if reward < best:
        return [
            f"the best reward of its group is {number(best)}, its own {number(reward)}: A = 0"
        ], 0.0
    lead = float(best - second)
    line = f"{number(best)} − {_bracketed(float(second))}"
    if estimator.scale == "none":
        return [f"A = {line} = {_signed(lead)}, best less second best"], lead
    std = float(moments.std[row])
    value = lead / (std + estimator.eps)
    return [
        f"best less second best = {line} = {number(lead)}; σ of the group = {number(std)}",
        f"A = {number(lead)} / ({number(std)} + {estimator.eps:g}) = {_signed(value)}",
    ], value


def _remax(estimator: Any, seen: AdvantageInputs, row: int, moments: Moments) -> Lines:
    if seen.greedy_rewards is None or seen.token_penalties is not None:
        return [], math.nan
    reward, greedy = float(seen.rewards[row]), float(seen.greedy_rewards[row])
    if math.isnan(greedy):
        return ["the greedy answer has no reward: nothing to compare with, A = 0"], 0.0
    value = reward - greedy
    return [
        f"the greedy answer to the same prompt has {number(greedy)}",
        f"A = {number(reward)} − {_bracketed(greedy)} = {_signed(value)}",
    ], value


def _plus_plus_baseline(estimator: Any, seen: AdvantageInputs, row: int, moments: Moments) -> Lines:
    compared = seen.scorable & (moments.count > 1)
    if not compared[row]:
        return _no_signal(seen, row)
    centred = np.where(compared & moments.spread, seen.rewards - moments.mean, 0.0)
    mean, factor = whitening(np.repeat(centred[compared], seen.lengths[compared]))
    reward, own = float(seen.rewards[row]), float(centred[row])
    value = (own - mean) * factor
    std = math.sqrt(max((1 / factor) ** 2 - WHITENING_STD**2, 0.0)) if factor else 0.0
    return [
        _mean_line(seen, row, moments),
        f"c = {number(reward)} − {_bracketed(float(moments.mean[row]))} = {_signed(own)}",
        f"over all tokens of the iteration c has mean {number(mean)} and deviation {number(std)}",
        f"A = ({_signed(own)} − {_bracketed(mean)}) / {_divisor(factor)} = {_signed(value)}",
    ], value


def _plus_plus(estimator: Any, seen: AdvantageInputs, row: int, moments: Moments) -> Lines:
    returns = discounted_sums(seen.token_rewards, seen.loss_mask, estimator.gamma)
    mean, factor = whitening(returns.values[seen.loss_mask.values & seen.scorable[returns.row_of]])
    own = returns.values[returns.row_of == row][seen.loss_mask.values[returns.row_of == row]]
    if not own.size:
        return ["it has no tokens to train on: A = 0"], 0.0
    average = float(own.mean())
    value = (average - mean) * factor
    return [
        f"R of its {len(own)} tokens, from the first to the last: {number(own[0])} to {number(own[-1])}, "
        f"on average {number(average)}",
        f"over all tokens of the iteration R has mean {number(mean)}",
        f"A = ({number(average)} − {_bracketed(mean)}) / {_divisor(factor)} = {_signed(value)}, "
        "the mean over its tokens",
    ], value


def _gdpo(estimator: Any, seen: AdvantageInputs, row: int, moments: Moments) -> Lines:
    scores = estimator.scores(seen)
    if not scores.spread[row]:
        return ["no reward differs within its group: no signal, A = 0"], 0.0
    lines = []
    for place, (weight, values) in enumerate(zip(seen.weights, seen.components.T, strict=True), 1):
        z, _, part = estimator.z_scores(values, seen.groups)
        if weight == 0 or not z[row]:
            lines.append(f"z of reward {place} counts 0")
            continue
        lines.append(
            f"z of reward {place} = {_less(float(values[row]), float(part.mean[row]))} / "
            f"({number(float(part.std[row]))} + {estimator.eps:g}) = {_signed(float(z[row]))}, weight {weight:g}"
        )
    own = float(scores.sums[row])
    value = (own - scores.mean) * scores.factor
    return [
        *lines,
        f"s = Σ weight · z = {_signed(own)}",
        f"A = ({_signed(own)} − {_bracketed(scores.mean)}) / {_divisor(scores.factor)} = {_signed(value)}, "
        "by mean and deviation of s in the iteration",
    ], value


def _process_supervision(
    estimator: Any,
    seen: AdvantageInputs,
    row: int,
    moments: Moments,
) -> Lines:
    steps = estimator.steps(seen)
    if not steps.spread[row]:
        return ["no step's reward differs from the others of its group: no signal, A = 0"], 0.0
    mine = steps.z.row_of == row
    z, ends = steps.z.values[mine], steps.ends[mine]
    trained = np.flatnonzero(seen.loss_mask.values[seen.loss_mask.row_of == row])
    if not trained.size:
        return ["it has no tokens to train on: A = 0"], 0.0
    counts = np.array([np.count_nonzero(trained <= end) for end in ends])
    value = float((z * counts).sum() / trained.size)
    terms = " + ".join(
        f"{count} · {_bracketed(each)}" for count, each in zip(counts, z.tolist(), strict=True)
    )
    return [
        f"steps of its group: mean {number(float(steps.mean[row]))}, σ = {number(float(steps.std[row]))}",
        f"z of its {len(z)} steps: {_listed(z.tolist())}; a token gets those of its own and later steps",
        f"A = ({terms if len(z) <= WRITTEN_MEMBERS else 'tokens · z'}) / {trained.size} = {_signed(value)}, "
        "the mean over its tokens",
    ], value


def _pairs(estimator: Any, seen: AdvantageInputs, row: int, moments: Moments) -> Lines:
    pairs = estimator(seen).pairs
    pairs = pairs[seen.groups[pairs[:, 0]] == seen.groups[row]]
    if not len(pairs):
        return ["its group makes no pair of answers whose rewards differ enough: A = 0"], 0.0
    won, lost = (int((side == row).sum()) for side in pairs.T)
    value = (won - lost) / len(pairs)
    return [
        f"rewards of its group: {_listed(_members(seen, row))}",
        f"of {len(pairs)} pairs it is chosen in {won} and rejected in {lost}",
        f"A = ({won} − {lost}) / {len(pairs)} = {_signed(value)}",
    ], value


def _best(estimator: Any, seen: AdvantageInputs, row: int, moments: Moments) -> Lines:
    chosen = bool(estimator(seen).kept[row])
    bound = "" if estimator.min_reward is None else f" at or above {estimator.min_reward:g}"
    wanted = "all" if estimator.keep is None else f"{estimator.keep} best"
    said = f"chosen are the {wanted}{bound} of {_listed(_members(seen, row))}"
    if not chosen:
        return [said, "it is not among them: A = 0"], 0.0
    return [said, f"it is among them: A = {_signed(1.0)}"], 1.0


WRITERS: dict[tuple[str, str], Writer] = {
    ("best", "Best"): _best,
    ("group", "Group"): _group,
    ("leave_one_out", "LeaveOneOut"): _leave_one_out,
    ("max_rl", "MaxRl"): _max_rl,
    ("gpg", "Gpg"): _gpg,
    ("opo", "Opo"): _opo,
    ("pairs", "Pairs"): _pairs,
    ("pass_at_k", "PassAtK"): _pass_at_k,
    ("remax", "Remax"): _remax,
    ("gdpo", "Gdpo"): _gdpo,
    ("process_supervision", "ProcessSupervision"): _process_supervision,
    ("reinforce_plus_plus", "ReinforcePlusPlus"): _plus_plus,
    ("reinforce_plus_plus_baseline", "ReinforcePlusPlusBaseline"): _plus_plus_baseline,
}
"""By module and class, so that none of them is imported for another."""
