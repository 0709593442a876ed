"""shuffled: the negative control. Another reward's values, permuted at random within each group.

Every group keeps its mean and spread, so everything behind the reward sees the same statistics, but the values no
longer say which completion was good. Training on it must not improve the policy; what still moves comes from elsewhere.
The permutation is drawn uniformly (a row may keep its own value) from hashes of `seed` and the rollout ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import BeforeValidator, SerializeAsAny

from rollbook.components.rewards.base import Reward, RewardInput, RewardResult
from rollbook.components.rewards.outcomes import outcomes_of
from rollbook.core.ids import seed_of
from rollbook.core.registry import build


class Shuffled(Reward):
    """Permutes `reward` within each group.

    Attributes:
        reward: the reward to permute; its own `weight` is not used.
        seed: draws another permutation.

    Rows that `reward` could not score keep their error and take no part. The row's own value is logged as
    `<label>_original`, what `reward` logs as `<label>_<name>`. Step rewards are left out: they belong to one
    completion.
    """

    reward: Annotated[SerializeAsAny[Reward], BeforeValidator(lambda spec: build("rewards", spec))]
    seed: int = 0

    def __call__(self, row: RewardInput) -> float | RewardResult | None:
        return self.score([row])[0]

    def score(self, group: Sequence[RewardInput]) -> list[float | RewardResult | None]:
        label = self.title
        results = outcomes_of(self.reward, group)
        places = [place for place, result in enumerate(results) if result.error is None]
        places.sort(key=lambda place: group[place].rollout_id)  # the order of rows must not matter
        drawn = sorted(
            places, key=lambda place: seed_of("shuffle", self.seed, group[place].rollout_id)
        )
        values = {place: results[other].value for place, other in zip(places, drawn, strict=True)}
        return [
            replace(
                result,
                value=values.get(place),
                steps=None,
                log={
                    **{f"{label}_{name}": value for name, value in result.log.items()},
                    f"{label}_original": result.value,
                },
            )
            for place, result in enumerate(results)
        ]
