"""kl_drift: the policy goes far from its reference."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import PositiveFloat

from rollbook.components.coefficients import AdaptiveKl
from rollbook.views.doctor.chain import ChainReading
from rollbook.views.doctor.checks.base import Check, change_of, rounded
from rollbook.views.doctor.finding import Finding
from rollbook.views.doctor.iteration import Reading
from rollbook.views.doctor.kl_coefficient import kl_coefficient_of

STRONGER = 3.0


class KlDrift(Check):
    """A KL to the reference that is large and has not come down again.

    Attributes:
        limit: KL per token, nats; at 0.5 a token is on average 1.6 times as likely as under the reference, and an
            answer of 100 tokens shares nothing with it. 0.05 is much already (components/coefficients.py).
        targets: how many times its target a KL that follows one may be; the coefficient grows by at most a fifth an
            iteration (arXiv 1909.08593 §2.2), so it lags behind.
    """

    limit: PositiveFloat = 0.5
    targets: PositiveFloat = 3.0

    def __call__(self, run: ChainReading) -> Iterator[Finding]:
        measured = [each for each in run.having("kl") if each.recipe.needs_reference]
        found = [each for each in measured if each.metrics["kl"] > self._limit_of(each)]
        if not found or found[-1] is not measured[-1]:
            return
        last = found[-1]
        coefficient = kl_coefficient_of(last)
        yield self.finding(
            "warning",
            found,
            f"the KL to the reference is {last.metrics['kl']:.2g} nats per token",
            [
                f"{each.key}: kl {each.metrics['kl']:.3g}, at most {self._limit_of(each):g}"
                for each in found[-4:]
            ],
            f"updates move the policy faster than the KL term holds it to {last.reference}",
            change_of(last, coefficient.place_of_start, rounded(STRONGER * coefficient.start)),
        )

    def _limit_of(self, reading: Reading) -> float:
        setting = kl_coefficient_of(reading).setting
        if isinstance(setting, AdaptiveKl):
            return min(self.limit, self.targets * setting.target)
        return self.limit
