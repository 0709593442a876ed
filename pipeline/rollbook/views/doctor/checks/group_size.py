"""group_size: groups of two, in which an advantage says who was better and never by how much.

(r_1 − μ) / σ = ±1 for every unequal pair, with the population deviation; ±0.71 with the sample deviation
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from pydantic import PositiveInt

from rollbook.views.doctor.chain import ChainReading
from rollbook.views.doctor.checks.base import Check, change_of
from rollbook.views.doctor.finding import Finding
from rollbook.views.doctor.iteration import Reading
from rollbook.views.doctor.rollouts import Rollouts


class GroupSize(Check):
    """Groups that are too small to say how much better an answer is.

    Attributes:
        least: answers to a prompt; in groups of two every unequal pair has the same two advantages, whatever the gap
            between the rewards; three are the fewest that tell a large gap from a small one.
        suggested: answers to suggest, the group size of the shipped recipe.
    """

    least: PositiveInt = 3
    suggested: PositiveInt = 8

    def __call__(self, run: ChainReading) -> Iterator[Finding]:
        found = [(reading, rollouts) for reading, rollouts in run.scored if self._small(reading)]
        if not found:
            return
        last = found[-1][0]
        size = last.recipe.generate_rollouts.group_size
        place = "generate_rollouts.group_size"
        yield self.finding(
            "warning",
            [reading for reading, _ in found],
            f"groups of {size}: advantages do not say how much better an answer is",
            [_evidence(reading, rollouts) for reading, rollouts in found[-3:]],
            f"with {size} answers to a prompt the mean they are compared with is the mean of each and its rival, and "
            "dividing by their deviation leaves the sign alone",
            change_of(last, place, max(self.suggested, self.least)),
        )

    def _small(self, reading: Reading) -> bool:
        estimator = reading.recipe.compute_advantages.estimator
        by_group = getattr(estimator, "scale", None) == "group"
        return by_group and reading.recipe.generate_rollouts.group_size < self.least


def _evidence(reading: Reading, rollouts: Rollouts) -> str:
    signal = rollouts.by_group.spread
    if not signal.any():
        return f"{reading.name}: none of {len(rollouts.group_ids)} groups has rewards that differ"
    groups = int(signal[rollouts.first_of_group].sum())
    deviations = rollouts.by_group.std[signal]
    said = (
        f"{reading.name}: in {groups} of {len(rollouts.group_ids)} groups rewards differ, with deviations of "
        f"{deviations.min():.3g} to {deviations.max():.3g}"
    )
    if rollouts.advantages is not None:
        largest = np.abs(rollouts.advantages[signal])
        said += f", and advantages of ±{np.nanmin(largest):.3g} to ±{np.nanmax(largest):.3g}"
    return f"{said}; such as {rollouts.group_ids[int(rollouts.groups[signal.argmax()])]}"
