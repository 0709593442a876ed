"""ratio_blowup: an update takes the policy far from the one that generated its rollouts.

kl_old = mean((ρ − 1) − log ρ)      k3 of old ‖ new, nats per token
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import PositiveFloat

from rollbook.views.doctor.chain import ChainReading
from rollbook.views.doctor.checks.base import Check, slower
from rollbook.views.doctor.finding import Finding
from rollbook.views.doctor.iteration import Reading


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

    def __call__(self, run: ChainReading) -> Iterator[Finding]:
        found = [each for each in run.iterations if self._excess(each) > 1]
        if not found:
            return
        worst = max(found, key=self._excess)
        yield self.finding(
            "serious",
            found,
            self._title(worst),
            [_evidence(each) for each in found[-4:]],
            "steps are too large: rollouts of the old policy no longer say how the new one does",
            slower(worst, 10),
        )

    def _excess(self, reading: Reading) -> float:
        """How many times its limit the measure is that exceeds it most; 0 where none is stored."""
        return max(
            reading.metrics.get("kl_old", 0.0) / self.kl_old,
            reading.metrics.get("ratio/max", 0.0) / self.highest,
        )

    def _title(self, reading: Reading) -> str:
        """By the measure that is above its limit; the KL, which is of all tokens, where both are."""
        kl_old = reading.metrics.get("kl_old", 0.0)
        if kl_old > self.kl_old:
            return f"an update moved the policy by {kl_old:.2g} nats per token"
        return f"an update made a token {reading.metrics['ratio/max']:,.0f} times as likely"


def _evidence(reading: Reading) -> str:
    """The figures that are stored."""
    metrics, said = reading.metrics, []
    if "kl_old" in metrics:
        said.append(f"kl_old {metrics['kl_old']:.3g}")
    if "ratio/max" in metrics:
        lowest = f"{metrics['ratio/min']:.2g} " if "ratio/min" in metrics else "up "
        said.append(f"ratios {lowest}to {metrics['ratio/max']:.3g}")
    return f"{reading.key}: {', '.join(said)}"
