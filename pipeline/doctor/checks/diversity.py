"""diversity: answers to a prompt that are nearly all the same, though not right.

collision = share of pairs of answers to a prompt that are the same
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pipeline.config import Share
from pipeline.doctor.checks.base import Check, change_of, rounded
from pipeline.doctor.finding import Finding
from pipeline.doctor.iteration import Reading
from pipeline.doctor.readings import Readings
from pipeline.doctor.rollouts import Rollouts
from pipeline.doctor.statistics import mean_of, same_pairs
from pipeline.estimation import Flags
from pipeline.evaluation import Estimate


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

    def __call__(self, run: Readings) -> Iterator[Finding]:
        found: list[tuple[Reading, Rollouts, Estimate, Flags]] = []
        solved = self._solved(run)
        for place, (reading, rollouts) in enumerate(run.scored):
            low = reading.recipe.generate_rollouts.temperature < self.temperature
            every = np.ones(len(rollouts.first_of_group), bool)
            open_ones = ~(rollouts.by_group.mean[rollouts.first_of_group] >= solved)
            which = every if low and place == 0 else open_ones
            shares = same_pairs(rollouts.completions, rollouts.groups)
            share = mean_of(shares[which & ~np.isnan(shares)])
            if share.low > self.limit:
                found.append((reading, rollouts, share, which))
        if not found:
            return
        reading, _, share, _ = found[-1]
        temperature = reading.recipe.generate_rollouts.temperature
        yield self.finding(
            "warning",
            [each[0] for each in found],
            f"{share.mean:.0%} of pairs of answers to a prompt are the same, at temperature {temperature:g}",
            [_evidence(*each) for each in found[-4:]],
            "the policy says one thing only, so there is nothing to compare",
            change_of(
                reading,
                "generate_rollouts.temperature",
                1.0 if temperature < 1 else rounded(1.2 * temperature),
            ),
        )

    def _solved(self, run: Readings) -> float:
        """The mean reward from which on a prompt of this run is solved; NaN without rewards."""
        every = np.concatenate([*(rollouts.rewards for _, rollouts in run.scored), [np.nan]])
        known = every[~np.isnan(every)]
        if not known.size:
            return np.nan
        return float(known.min() + self.solved * (known.max() - known.min()))


def _evidence(reading: Reading, rollouts: Rollouts, share: Estimate, which: Flags) -> str:
    shares = np.where(which, np.nan_to_num(same_pairs(rollouts.completions, rollouts.groups)), -1)
    return (
        f"{reading.name}: {share.mean:.0%} [{share.low:.0%}, {share.high:.0%}] of pairs in {int(which.sum())} groups, "
        f"such as {rollouts.group_ids[int(shares.argmax())]}"
    )
