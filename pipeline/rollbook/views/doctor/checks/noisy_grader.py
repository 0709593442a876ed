"""noisy_grader: rewards that differ by next to nothing become advantages of full size.

    A_i = (r_i − μ_g) / (σ_g + eps)

Where all answers to a prompt are alike, σ_g is what the grader's own noise makes it, and dividing by it gives chance
the same weight as a right answer among wrong ones (Dr. GRPO, arXiv 2503.20783 §3.1, calls it a bias of the difficulty).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rollbook.components.advantages.moments import moments_of
from rollbook.core.component import Share
from rollbook.rl.evaluation import Estimate
from rollbook.rl.scoring.totals import FloatArray
from rollbook.views.doctor.chain import ChainReading
from rollbook.views.doctor.checks.base import Check, change_of, reward_change
from rollbook.views.doctor.finding import Finding
from rollbook.views.doctor.iteration import Reading
from rollbook.views.doctor.rollouts import Rollouts
from rollbook.views.doctor.statistics import FEWEST_GROUPS, mean_of, without_nan


@dataclass(frozen=True)
class _Noise:
    """Groups of an iteration whose spread is that of noise: share of those with a spread, and the label of one."""

    reading: Reading
    rollouts: Rollouts
    share: Estimate
    example: int


class NoisyGrader(Check):
    """Groups of near-equal rewards that are divided by their own deviation, and judges that disagree with themselves.

    Attributes:
        spread: deviation within a group, as a share of that of the whole iteration, below which rewards are near-equal;
            one wrong answer of eight makes 0.66 in the shipped params.yaml.
        distinct: share of a group's rewards that are different numbers, from which on they look drawn at random; a
            small reward for the layout, which is meant, takes two or three values.
        groups: share of the groups with a spread that may be so; rewards of right and wrong make none.
        judge: a judge's own deviation, left in the mean of its votes, as a share of the deviation within groups, from
            which on half of the variance that answers are told apart by is the judge's; with every estimator.
    """

    spread: Share = 0.05
    distinct: Share = 0.5
    groups: Share = 0.1
    judge: Share = 0.7

    def __call__(self, run: ChainReading) -> Iterator[Finding]:
        scored = [each for each in run.scored if _scale(each[0]) == "group"]
        every = [self._noise(*each) for each in scored]
        found = [each for each in every if each is not None and each.share.low > self.groups]
        if found:
            last = found[-1]
            yield self.finding(
                "warning",
                [each.reading for each in found],
                f"{last.share.mean:.0%} of groups have near-equal rewards, made into advantages of full size",
                [_evidence(each) for each in found[-3:]],
                "the reward is noisy, and dividing by a group's deviation makes noise as large as a difference",
                change_of(last.reading, "compute_advantages.estimator.scale", "batch"),
            )
        for reading, rollouts in run.scored[-1:]:  # chance is reinforced whatever it is divided by
            yield from self._judges(reading, rollouts)

    def _noise(self, reading: Reading, rollouts: Rollouts) -> _Noise | None:
        group, first = rollouts.by_group, rollouts.first_of_group
        signal = group.spread[first]
        if signal.sum() < FEWEST_GROUPS:
            return None
        pairs = np.unique(
            np.stack([rollouts.groups, rollouts.rewards])[:, ~np.isnan(rollouts.rewards)], axis=1
        )
        different = np.bincount(pairs[0].astype(np.int64), minlength=len(first))
        near = signal & (group.std[first] < self.spread * rollouts.known_rewards.std())
        near &= different > self.distinct * rollouts.group_sizes
        return _Noise(
            reading, rollouts, mean_of(near[signal].astype(np.float64)), int(near.argmax())
        )

    def _judges(self, reading: Reading, rollouts: Rollouts) -> Iterator[Finding]:
        for place, reward in enumerate(reading.recipe.score_rollouts.rewards):
            label, votes = reward.title, getattr(reward, "votes", 1)
            own, values = rollouts.logged(reward, "spread"), rollouts.component(reward)
            if own is None or values is None or votes < 2:
                continue
            within = _root_mean_square(_deviations(rollouts, values))
            noise = _root_mean_square(own) / math.sqrt(votes - 1)  # of a population deviation
            if noise > self.judge * within > 0:
                yield self.finding(
                    "warning",
                    [reading],
                    f"reward {label} disagrees with itself by {noise:.2g}, answers of a group differ by {within:.2g}",
                    [
                        f"{reading.name}: deviation of {votes} votes on an answer {_root_mean_square(own):.3g}, "
                        f"of {len(own)} answers; such as {rollouts.ids[int(np.nanargmax(own))].as_py()}"
                    ],
                    "the judge's replies vary more than the answers do, so chance decides which of them are reinforced",
                    reward_change(reading, place, "votes", 4 * votes),
                )


def _scale(reading: Reading) -> str | None:
    return getattr(reading.recipe.compute_advantages.estimator, "scale", None)


def _deviations(rollouts: Rollouts, values: FloatArray) -> FloatArray:
    """[G] sample deviation of a value within each group."""
    return moments_of(values, rollouts.groups, ddof=1).std[rollouts.first_of_group]


def _root_mean_square(values: FloatArray) -> float:
    """Of those that are not NaN; NaN without any."""
    known = without_nan(values)
    return float(np.sqrt(np.mean(known**2))) if known.size else math.nan


def _evidence(each: _Noise) -> str:
    rollouts, rows = each.rollouts, each.rollouts.groups == each.example
    rewards = rollouts.rewards[rows]
    shown = f"rewards {np.nanmin(rewards):.4g} to {np.nanmax(rewards):.4g}"
    if rollouts.advantages is not None:
        advantages = rollouts.advantages[rows]
        shown += f", advantages {np.nanmin(advantages):+.2f} to {np.nanmax(advantages):+.2f}"
    return f"{each.reading.name}: {each.share.mean:.0%} of groups, such as {rollouts.group_ids[each.example]}: {shown}"
