"""ratio_blowup: an update takes the policy far from the one that generated its rollouts.

kl_old = mean((ρ − 1) − log ρ)      k3 of old ‖ new, nats per token
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import PositiveFloat

from pipeline.doctor.checks.base import Check, change_of, rounded
from pipeline.doctor.finding import Finding
from pipeline.doctor.iteration import Reading
from pipeline.doctor.readings import Readings


class RatioBlowup(Check):
    """Importance ratios far from 1.

    Attributes:
        kl_old: KL of the policy before the update to the one during it, nats per token; PPO codes stop an update near
            0.015 (1.5 · `target_kl` of Spinning Up), the shipped params.yaml has 0.003 to 0.035 (seeds 0 to 2).
        highest: the largest ratio of any token; 31 in the sixth iteration of the shipped params.yaml with seed 0, all
            others of seeds 0 to 2 are below 7, and a probability a thousand times as high is a policy of its own.
    """

    kl_old: PositiveFloat = 0.1
    highest: PositiveFloat = 1000.0

    def __call__(self, run: Readings) -> Iterator[Finding]:
        found = [each for each in run.having("kl_old", "ratio/max") if self._far(each)]
        if not found:
            return
        worst = max(found, key=lambda each: each.metrics["kl_old"])
        rate = worst.recipe.update_policy.learning_rate
        yield self.finding(
            "serious",
            found,
            f"an update moved the policy by {worst.metrics['kl_old']:.2g} nats per token",
            [
                f"{each.key}: kl_old {each.metrics['kl_old']:.3g}, ratios {each.metrics.get('ratio/min', 0):.2g} to "
                f"{each.metrics['ratio/max']:.3g}"
                for each in found[-4:]
            ],
            "steps are too large: rollouts of the old policy no longer say how the new one does",
            change_of(worst, "update_policy.learning_rate", rounded(rate / 10)),
        )

    def _far(self, reading: Reading) -> bool:
        metrics = reading.metrics
        return metrics["kl_old"] > self.kl_old or metrics["ratio/max"] > self.highest
