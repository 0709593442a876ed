"""kl_strength: a KL term that is as strong as the reward.

    pull = kl_coef · sqrt(2 · KL) / std(A)

The gradient of the KL term on a token is kl_coef · (ℓ − ℓ_ref), that of the policy term A for k2, and near it for k3;
for a small KL, k2 and k3 are the mean of (ℓ − ℓ_ref)² / 2, whose root gives the first. Where both are alike the policy
stops.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from pydantic import PositiveFloat, PositiveInt

from pipeline.doctor.checks.base import Check, change_of, rounded
from pipeline.doctor.finding import Finding
from pipeline.doctor.iteration import Reading
from pipeline.doctor.readings import Readings
from pipeline.doctor.statistics import successive

ESTIMATORS = ("k2", "k3")


class KlStrength(Check):
    """A KL term in the loss that holds the policy where it is.

    Attributes:
        limit: pull of the KL term as a share of the pull of the advantages; DeepSeekMath's coefficient of 0.04 comes to
            0.04 at a KL of 0.5, and a KL term is meant to correct the reward, not to outweigh it.
        iterations: in a row that must be above it; the KL is 0 when a chain starts.
    """

    limit: PositiveFloat = 0.3
    iterations: PositiveInt = 2

    def __call__(self, run: Readings) -> Iterator[Finding]:
        measured = [
            each
            for each in run.having("kl", "advantages/std")
            if each.recipe.update_policy.loss.needs_reference
            and each.recipe.update_policy.loss.kl_estimator in ESTIMATORS
            and each.metrics["advantages/std"] > 0
        ]
        flagged = [_pull(each) > self.limit for each in measured]
        found = successive(measured, flagged, self.iterations)
        if not found:
            return
        last = found[-1]
        now = _coefficient(last)
        place = "update_policy.loss.kl_coef"
        yield self.finding(
            "warning",
            found,
            f"the KL term pulls {_pull(last):.0%} as hard as the advantages",
            [
                f"{each.key}: kl_coef {_coefficient(each):g}, kl {each.metrics['kl']:.2g}, deviation of the advantages "
                f"{each.metrics['advantages/std']:.2f}"
                for each in found[-4:]
            ],
            "the coefficient is so large that the policy cannot leave its reference, whatever the reward says",
            change_of(last, place, rounded(now * self.limit / _pull(last) / 10)),
        )


def _coefficient(reading: Reading) -> float:
    """As it stood in the last optimizer step."""
    used = reading.steps.get("kl_coef")
    if used is not None and len(used) and math.isfinite(used[-1]):
        return float(used[-1])
    coefficient = reading.recipe.update_policy.loss.kl_coef
    return coefficient if isinstance(coefficient, float) else coefficient.start


def _pull(reading: Reading) -> float:
    distance = math.sqrt(2 * max(reading.metrics["kl"], 0.0))
    return _coefficient(reading) * distance / reading.metrics["advantages/std"]
