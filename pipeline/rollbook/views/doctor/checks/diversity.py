"""diversity: answers to a prompt that are nearly all the same, though not right.

collision = share of pairs of answers to a prompt that are the same
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rollbook.core.component import Share
from rollbook.rl.evaluation import Estimate
from rollbook.views.doctor.chain import ChainReading
from rollbook.views.doctor.checks.base import Check, change_of, rounded
from rollbook.views.doctor.finding import Finding
from rollbook.views.doctor.iteration import Reading
from rollbook.views.doctor.rollouts import Rollouts
from rollbook.views.doctor.statistics import mean_of


@dataclass(frozen=True)
class _Alike:
    """Equal answers of an iteration: their share of the pairs of the groups that count, and one of these."""

    reading: Reading
    share: Estimate
    groups: int
    example: str


class Diversity(Check):
    """Too few different answers at the temperature used.

    Attributes:
        limit: share of equal pairs among answers to prompts that are not solved. The base policy of the shipped
            params.yaml has 0.22 at most over all prompts, and 0.83 where nine answers of ten are right.
        temperature: below it, all prompts of the first iteration count as well: a policy that is asked with care for
            its likeliest answer explores nothing, whether that is right or not.
        solved: place of a group's mean reward between the lowest and the highest of the run from which on its prompt is
            solved; below 1 because rewards may be noisy.
    """

    limit: Share = 0.8
    temperature: Share = 1.0
    solved: Share = 0.95

    def __call__(self, run: ChainReading) -> Iterator[Finding]:
        solved = self._solved(run)
        every = [
            _alike(reading, rollouts, np.inf if self._is_cold(reading) and not place else solved)
            for place, (reading, rollouts) in enumerate(run.scored)
        ]
        found = [each for each in every if each.share.low > self.limit]
        if not found:
            return
        reading, share = found[-1].reading, found[-1].share
        temperature = reading.recipe.generate_rollouts.temperature
        yield self.finding(
            "warning",
            [each.reading for each in found],
            f"{share.mean:.0%} of pairs of answers to a prompt are the same, at temperature {temperature:g}",
            [_evidence(each) for each in found[-4:]],
            "the policy says one thing only, so there is nothing to compare",
            change_of(
                reading,
                "generate_rollouts.temperature",
                1.0 if temperature < 1 else rounded(1.2 * temperature),
            ),
        )

    def _is_cold(self, reading: Reading) -> bool:
        return reading.recipe.generate_rollouts.temperature < self.temperature

    def _solved(self, run: ChainReading) -> float:
        """The mean reward from which on a prompt of this run is solved: from any on where no two rewards differ."""
        if run.reward_range is None:
            return -np.inf
        lowest, highest = run.reward_range
        return lowest + self.solved * (highest - lowest)


def _alike(reading: Reading, rollouts: Rollouts, solved: float) -> _Alike:
    """Of the groups whose mean reward is below `solved`, and of those without a reward."""
    counts = ~(rollouts.by_group.mean[rollouts.first_of_group] >= solved)
    counts &= ~np.isnan(rollouts.same_pairs)
    share = mean_of(rollouts.same_pairs[counts])
    most = int(np.where(counts, rollouts.same_pairs, -1).argmax()) if counts.any() else None
    example = "" if most is None else rollouts.group_ids[most]
    return _Alike(reading, share, int(counts.sum()), example)


def _evidence(each: _Alike) -> str:
    return (
        f"{each.reading.name}: {each.share.text('.0%', share=True)} of pairs in {each.groups} groups, such as "
        f"{each.example}"
    )
