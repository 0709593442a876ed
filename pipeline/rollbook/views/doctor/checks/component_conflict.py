"""component_conflict: one reward rises and another falls: the policy sells one for the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from pydantic import PositiveFloat

from rollbook.components.rewards.base import Reward
from rollbook.rl.evaluation import Estimate
from rollbook.rl.scoring.totals import FloatArray
from rollbook.views.doctor.chain import ChainReading
from rollbook.views.doctor.checks.base import Check, reward_change, rounded
from rollbook.views.doctor.finding import Finding
from rollbook.views.doctor.iteration import Reading
from rollbook.views.doctor.rollouts import Rollouts
from rollbook.views.doctor.statistics import difference, first_and_last, group_means, mean_of


class ComponentConflict(Check):
    """Reward functions, times their weights, that move in opposite directions.

    Attributes:
        move: by how many of its deviations in the first third of the chain a component must rise, or fall, until the
            last third, beyond the 95 % interval; chosen as what is called a small effect (Cohen's d of 0.2).
    """

    move: PositiveFloat = 0.2

    def __call__(self, run: ChainReading) -> Iterator[Finding]:
        parts = first_and_last(run.scored)
        if not parts[0]:
            return
        reading = parts[1][-1][0]
        moved = {
            place: self._moved(parts, reward)
            for place, reward in enumerate(reading.recipe.score_rollouts.rewards)
            if reward.weight
        }
        rising = [place for place, (size, found) in moved.items() if found.low > self.move * size]
        falling = [
            place for place, (size, found) in moved.items() if found.high < -self.move * size
        ]
        if not (rising and falling):
            return
        rewards = reading.recipe.score_rollouts.rewards
        up = max(rising, key=lambda place: moved[place][1].mean)
        down = min(falling, key=lambda place: moved[place][1].mean)
        names = [rewards[place].title for place in (up, down)]
        yield self.finding(
            "warning",
            [each for each, _ in run.scored],
            f"{names[0]} rose while {names[1]} fell",
            [
                f"{parts[0][0][0].key} to {reading.key}: {rewards[place].title}, times its weight of "
                f"{rewards[place].weight:g}: {found.text('+.3g')} (95 %, by prompt)"
                for place, (_, found) in sorted(moved.items())
                if np.isfinite(found.mean)
            ],
            f"{names[0]} is cheaper to earn, and outweighs what {names[1]} loses",
            reward_change(reading, up, "weight", rounded(rewards[up].weight / 3)),
        )

    def _moved(
        self, parts: Sequence[Sequence[tuple[Reading, Rollouts]]], reward: Reward
    ) -> tuple[float, Estimate]:
        """Deviation of a weighted component in the first part, and its change until the last."""
        first, last = ([_weighted(rollouts, reward) for _, rollouts in part] for part in parts)
        nothing = Estimate(*[float("nan")] * 3)
        if any(each is None for each in (*first, *last)):
            return 0.0, nothing
        means = [
            mean_of(
                np.concatenate(
                    [
                        group_means(values, rollouts.groups)
                        for (_, rollouts), values in zip(part, weighted, strict=True)
                        if values is not None
                    ]
                )
            )
            for part, weighted in zip(parts, (first, last), strict=True)
        ]
        spread = np.concatenate([each for each in first if each is not None])
        return float(np.nanstd(spread)), difference(*means)


def _weighted(rollouts: Rollouts, reward: Reward) -> FloatArray | None:
    values = rollouts.component(reward)
    return None if values is None or np.isnan(values).all() else reward.weight * values
