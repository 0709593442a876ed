"""What other rewards say about stored rollouts, and how that differs from what the iteration was trained on.

Pure functions over the tables of one iteration; nothing here needs a model. An iteration whose rollouts come from the
base policy is exactly on-policy for any rewards. Later ones come from a policy that the old rewards have trained: what
they say holds for that policy. How far it had moved shows in the weights of its rollouts as samples of the reference:

    w_i = Π_t p_reference(token) / p_sampled(token)        effective share = (Σw)² / (N Σw²)        (Kish 1965)
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rollbook.components.advantages.base import FloatArray
from rollbook.components.coefficients import start_of
from rollbook.components.rewards.outcomes import OnRows
from rollbook.core.errors import RollbookError
from rollbook.core.ids import BASE_KEY
from rollbook.core.ragged import IntArray, Ragged
from rollbook.rl.estimation import (
    Flags,
    advantages_table,
    aligned_logprobs,
    estimation_of,
    has_measured,
    sampled_rows,
)
from rollbook.rl.scoring.inputs import inputs_of
from rollbook.rl.scoring.scorer import Scorer
from rollbook.rl.scoring.totals import mean_and_std
from rollbook.settings.recipe_sections import ComputeAdvantages, ScoreRollouts
from rollbook.tables.artifacts import schema_of
from rollbook.tables.columns import aligned, group_labels, numbers_in
from rollbook.tables.schemas.rescores import SCHEMA, SIGNALS
from rollbook.tables.schemas.rollouts import IDS

TABLES = ("prompts", "rollouts", "scores", "logprobs", "advantages")
"""What is read of an iteration."""
Numbers = Mapping[str, float | int]
"""What `summary` says."""
MOST_MOVED = 10
MOVED = (
    *IDS,
    "greedy",
    "error",
    *(f"{age}{name}" for name in ("reward", "advantage") for age in ("old_", "")),
)
"""Columns that `most_moved` reads, and what is shown of its rows."""
DIGITS = 3
"""Significant digits that rewards and advantages are shown with. An estimator's eps moves advantages by about 1e-4 when
rewards are only scaled: a change that these digits do not show is none."""
SMALLEST = 1e-300
"""Below it, powers of ten leave the range of float64."""
WEIGHED_ROWS = 16_384
"""Rows whose tokens are held in float64 at once."""


def rescored(
    tables: Mapping[str, pa.Table],
    scorer: Scorer,
    score: ScoreRollouts,
    compute: ComputeAdvantages,
    on_rows: OnRows | None = None,
) -> pa.Table:
    """The rescores table of one iteration, in the order of its rollouts.

    A coefficient of a KL in the reward that follows a target counts at its start.

    Args:
        tables: those of `TABLES`.
        scorer: of the other rewards; kept from one iteration to the next.
        score: the other rewards, and how many rows may fail.
        compute: the estimator that turns them into advantages.
        on_rows: told about progress.

    Raises:
        RewardError: if a larger share of rollouts than allowed made a reward fail.
        ArtifactError: if the tables do not belong together, or lack what the estimator reads.
        RollbookError: if the KL to the reference is part of the rewards and was not measured.
    """
    rollouts = tables["rollouts"]
    before = {kind: aligned(tables[kind], rollouts, kind) for kind in ("scores", "advantages")}
    logprobs = aligned_logprobs(tables["logprobs"], rollouts)
    if compute.needs_reference and not has_measured(logprobs, "old_logprobs", "ref_logprobs"):
        raise RollbookError(
            f"{_iteration_of(rollouts)} has no log-probs of the reference policy, and compute_advantages.kl_coef takes "
            "the KL to it off the rewards",
            "re-score with a recipe that `extends` this one and sets compute_advantages.kl_coef: 0",
        )
    rows = inputs_of(tables["prompts"], rollouts)
    columns = scorer.score(rows, score.max_error_share, on_rows)
    ids = {name: rollouts[name] for name in IDS}
    found = estimation_of(
        rollouts,
        schema_of("scores").build({**ids, **columns}),
        logprobs,
        compute,
        {reward.column: reward.weight for reward in score.rewards},
        _group_size(rollouts),
        start_of(compute.kl_coef),
    )
    everything = np.ones(len(found.given.groups), bool)
    after = advantages_table(rollouts, found.groups, found.outputs, everything)
    return SCHEMA.build(
        {
            **ids,
            **columns,
            "greedy": rollouts["greedy"],
            "old_reward": before["scores"]["reward"],
            "token_advantages": after["token_advantages"],
            **_differences(
                found.groups,
                sampled_rows(rollouts),
                (numbers_in(before["scores"]["reward"]), numbers_in(columns["reward"])),
                (before["advantages"], after),
            ),
            "reference_log_weight": _reference_log_weights(rollouts, logprobs),
        }
    )


def summary(table: pa.Table, previous: str) -> dict[str, float | int]:
    """Numbers about a rescores table, greedy rollouts left out. NaN where there is nothing to measure.

    `null` rollouts are those no reward applies to; `on_policy` is 1 where the policy that sampled is the base policy.

    Args:
        table: of `rescored`.
        previous: the iteration whose policy sampled.
    """
    sampled = table.filter(pc.invert(table["greedy"]))
    old, new = numbers_in(sampled["old_reward"]), numbers_in(sampled["reward"])
    signals = _signals_of_groups(sampled)
    errors = sampled.num_rows - sampled["error"].null_count
    flips = int(np.count_nonzero(sampled["sign_flipped"].to_numpy()))
    change = numbers_in(sampled["advantage"]) - numbers_in(sampled["old_advantage"])
    return {
        "rollouts": sampled.num_rows,
        "groups": len(signals),
        "old_reward": mean_and_std(old)[0],
        "reward": mean_and_std(new)[0],
        "rank_correlation": rank_correlation(old, new),
        "sign_flips": flips,
        "sign_flips_share": flips / sampled.num_rows if sampled.num_rows else float("nan"),
        "advantage_change": mean_and_std(np.abs(change))[0],
        **{f"groups_{name}": int((signals == name).sum()) for name in SIGNALS},
        "null": int(np.isnan(new).sum()) - errors,
        "errors": errors,
        "on_policy": int(previous == BASE_KEY),
        "effective_share": effective_share(numbers_in(sampled["reference_log_weight"])),
    }


def most_moved(table: pa.Table, count: int = MOST_MOVED) -> pa.Table:
    """The sampled rows whose advantage changed most, then those whose reward did.

    Left out are rows that made a reward fail, and those where both stay the same in `DIGITS` digits.

    Args:
        table: of `rescored`; of its columns those of `MOVED`.
        count: rows at most.
    """
    moved = [
        _change(numbers_in(table[f"old_{name}"]), numbers_in(table[name]))
        for name in ("advantage", "reward")
    ]
    answered = sampled_rows(table) & table["error"].is_null().to_numpy()
    order = np.lexsort((-moved[1], -moved[0]))
    changed = order[(answered & ((moved[0] > 0) | (moved[1] > 0)))[order]]
    return table.take(pa.array(changed[:count]))


def rank_correlation(first: FloatArray, second: FloatArray) -> float:
    """Spearman's, over the rows where both are known, ties sharing their mean rank; NaN if either is constant."""
    known = ~np.isnan(first) & ~np.isnan(second)
    if not known.any():
        return float("nan")
    ranks = [_mean_ranks(values[known]) for values in (first, second)]
    centred = [each - each.mean() for each in ranks]
    scale = float(np.sqrt((centred[0] ** 2).sum() * (centred[1] ** 2).sum()))
    return float((centred[0] * centred[1]).sum()) / scale if scale else float("nan")


def effective_share(log_weights: FloatArray) -> float:
    """Kish's effective sample size as a share of the rows whose weight is known; NaN if none is.

    Args:
        log_weights: [B] nats; NaN = unknown.
    """
    known = log_weights[~np.isnan(log_weights)]
    if not known.size:
        return float("nan")
    weights = np.exp(known - known.max())
    return float(weights.sum() ** 2 / (len(weights) * np.square(weights).sum()))


def group_ranks(values: FloatArray, groups: IntArray) -> FloatArray:
    """[B] place of each value in its group, 1 for the largest; equal values share the better place, NaN has none."""
    known = np.flatnonzero(~np.isnan(values))
    order = known[np.lexsort((-values[known], groups[known]))]
    value, group = values[order], groups[order]
    place = np.arange(len(order))
    group_starts = np.r_[True, group[1:] != group[:-1]][: len(order)]
    run_starts = group_starts | np.r_[True, value[1:] != value[:-1]][: len(order)]
    first_of_group = np.maximum.accumulate(np.where(group_starts, place, 0))
    first_of_run = np.maximum.accumulate(np.where(run_starts, place, 0))
    ranks = np.full(len(values), np.nan)
    ranks[order] = first_of_run - first_of_group + 1
    return ranks


def _differences(
    groups: IntArray,
    sampled: Flags,
    rewards: tuple[FloatArray, FloatArray],
    advantages: tuple[pa.Table, pa.Table],
) -> dict[str, pa.Array]:
    """Columns about both, each of the pairs old first."""
    old, new = (table["advantage"].to_numpy() for table in advantages)
    ranks = [group_ranks(np.where(sampled, values, np.nan), groups) for values in rewards]
    was, will = (table["informative"].to_numpy().astype(int) for table in advantages)
    signals = np.array([["none", "gained"], ["lost", "kept"]])
    return {
        "old_advantage": pa.array(old),
        "advantage": pa.array(new),
        "sign_flipped": pa.array(np.sign(old) * np.sign(new) < 0),
        "old_group_rank": _whole(ranks[0]),
        "group_rank": _whole(ranks[1]),
        "rank_moved": _whole(ranks[0] - ranks[1]),
        "group_signal": pa.array(signals[was, will]),
    }


def _change(old: FloatArray, new: FloatArray) -> FloatArray:
    """[B] absolute difference; 0 where one is missing, or where `DIGITS` digits do not show it."""
    change = np.nan_to_num(np.abs(new - old))
    # Close, not equal: 999.9 and 1000.1 are rounded at different powers of ten.
    change[np.isclose(_rounded(old), _rounded(new), rtol=1e-9, atol=0.0)] = 0.0
    return change


def _rounded(values: FloatArray) -> FloatArray:
    """[B] the values with `DIGITS` significant digits."""
    size = np.abs(values)
    known = np.isfinite(size) & (size > SMALLEST)
    scale = np.ones(len(values))
    scale[known] = 10.0 ** (DIGITS - 1 - np.floor(np.log10(size[known])))
    rounded: FloatArray = np.where(known, np.round(values * scale) / scale, values)
    return rounded


def _whole(values: FloatArray) -> pa.Array:
    """Whole numbers, NaN as null."""
    return pa.array(values, from_pandas=True).cast(pa.int32())


def _reference_log_weights(rollouts: pa.Table, logprobs: pa.Table) -> pa.Array:
    """[R] Σ reference − policy over the tokens that are trained on, nats; null where one of both was not stored.

    The trainer's own log-probs of the policy are taken where there are some: the engine's may be of another precision.
    """
    if not has_measured(logprobs, "ref_logprobs"):
        return pa.nulls(rollouts.num_rows, pa.float64())
    own = has_measured(logprobs, "old_logprobs")
    policy = logprobs["old_logprobs"] if own else rollouts["sampling_logprobs"]
    columns = (policy, logprobs["ref_logprobs"], rollouts["loss_mask"])
    sums = [
        _log_weights(*(Ragged.from_column(column.slice(start, WEIGHED_ROWS)) for column in columns))
        for start in range(0, rollouts.num_rows, WEIGHED_ROWS)
    ]
    return pa.array(np.concatenate(sums), from_pandas=True)


def _log_weights(policy: Ragged, reference: Ragged, mask: Ragged) -> FloatArray:
    """[B] Σ reference − policy over the tokens of the mask."""
    each = reference.values.astype(np.float64) - policy.values
    return Ragged(np.where(mask.values, each, 0.0), policy.lengths).sums()


def _signals_of_groups(sampled: pa.Table) -> NDArray[np.str_]:
    """[G] what became of each group's signal."""
    first = np.unique(group_labels(sampled), return_index=True)[1]
    return np.array(sampled["group_signal"].take(pa.array(first)).to_pylist(), dtype=str)


def _group_size(rollouts: pa.Table) -> int:
    """Sampled rollouts per group as generated, whatever group size the other recipe has."""
    groups = pc.count_distinct(rollouts["group_id"]).as_py()
    return round(int(sampled_rows(rollouts).sum()) / max(groups, 1))


def _iteration_of(rollouts: pa.Table) -> str:
    return str(rollouts["iteration"][0]) if rollouts.num_rows else "the iteration"


def _mean_ranks(values: FloatArray) -> FloatArray:
    """[B] rank of each value from the smallest, ties sharing the mean of their ranks."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    mean: FloatArray = np.cumsum(counts) - (counts - 1) / 2
    return mean[place]
