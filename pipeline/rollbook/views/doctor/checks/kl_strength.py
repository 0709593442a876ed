"""kl_strength: a KL term that is as strong as the reward.

    pull = kl_coef · sqrt(2 · KL) / std(A)

The gradient of the KL term on a token is kl_coef · (ℓ − ℓ_ref), that of the policy term A for k2, and near it for k3;
for a small KL, k2 and k3 are the mean of (ℓ − ℓ_ref)² / 2, whose root gives the first. Where both are alike the policy
stops.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import PositiveFloat, PositiveInt

from rollbook.views.doctor.chain import ChainReading
from rollbook.views.doctor.checks.base import Check, change_of, rounded
from rollbook.views.doctor.finding import Finding
from rollbook.views.doctor.iteration import Reading
from rollbook.views.doctor.kl_coefficient import KlCoefficient, kl_coefficient_of
from rollbook.views.doctor.statistics import successive

ESTIMATORS = ("k2", "k3")


@dataclass(frozen=True)
class _Pull:
    """An iteration, its KL coefficient as used, and its KL term's pull as a share of that of the advantages."""

    reading: Reading
    coefficient: KlCoefficient
    strength: float


class KlStrength(Check):
    """A KL term in the loss that holds the policy where it is.

    Attributes:
        limit: pull of the KL term as a share of the pull of the advantages; DeepSeekMath's coefficient of 0.04 comes to
            0.04 at a KL of 0.5, and a KL term is meant to correct the reward, not to outweigh it.
        iterations: in a row that must be above it; the KL is 0 when a chain starts.
    """

    limit: PositiveFloat = 0.3
    iterations: PositiveInt = 2

    def __call__(self, run: ChainReading) -> Iterator[Finding]:
        every = [_pull(each) for each in run.having("kl", "advantages/std")]
        measured = [each for each in every if each is not None]
        found = successive(
            measured, [each.strength > self.limit for each in measured], self.iterations
        )
        if not found:
            return
        last = found[-1]
        weaker = self.limit / last.strength / 10
        yield self.finding(
            "warning",
            [each.reading for each in found],
            f"the KL term pulls {last.strength:.0%} as hard as the advantages",
            [
                f"{each.reading.key}: kl_coef {each.coefficient.used:g}, kl {each.reading.metrics['kl']:.2g}, "
                f"deviation of the advantages {each.reading.metrics['advantages/std']:.2f}"
                for each in found[-4:]
            ],
            "the coefficient is so large that the policy cannot leave its reference, whatever the reward says",
            change_of(
                last.reading,
                last.coefficient.place_of_start,
                rounded(weaker * last.coefficient.start),
            ),
        )


def _pull(reading: Reading) -> _Pull | None:
    """None where the loss has no KL term that this can be said of, or its coefficient is not stored."""
    loss, coefficient = reading.recipe.update_policy.loss, kl_coefficient_of(reading)
    deviation = reading.metrics["advantages/std"]
    if not (loss.needs_reference and loss.kl_estimator in ESTIMATORS and deviation > 0):
        return None
    if coefficient.used is None:
        return None
    distance = math.sqrt(2 * max(reading.metrics["kl"], 0.0))
    return _Pull(reading, coefficient, coefficient.used * distance / deviation)
