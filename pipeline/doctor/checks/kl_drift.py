"""kl_drift: the policy goes far from its reference."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import PositiveFloat

from pipeline.coefficients import AdaptiveKl, start_of
from pipeline.doctor.checks.base import Check, change_of, rounded
from pipeline.doctor.finding import Change, Finding
from pipeline.doctor.iteration import Reading
from pipeline.doctor.readings import Readings

STRONGER = 3.0


class KlDrift(Check):
    """A KL to the reference that is large and has not come down again.

    Attributes:
        limit: KL per token, nats; at 0.5 a token is on average 1.6 times as likely as under the reference, and an
            answer of 100 tokens shares nothing with it. 0.05 is much already (pipeline/coefficients.py).
        targets: how many times its target a KL that follows one may be; the coefficient grows by at most a fifth an
            iteration (arXiv 1909.08593 §2.2), so it lags behind.
    """

    limit: PositiveFloat = 0.5
    targets: PositiveFloat = 3.0

    def __call__(self, run: Readings) -> Iterator[Finding]:
        measured = run.having("kl")
        found = [each for each in measured if each.metrics["kl"] > self._limit_of(each)]
        if not found or found[-1] is not measured[-1]:
            return
        last = found[-1]
        yield self.finding(
            "warning",
            found,
            f"the KL to the reference is {last.metrics['kl']:.2g} nats per token",
            [
                f"{each.key}: kl {each.metrics['kl']:.3g}, at most {self._limit_of(each):g}"
                for each in found[-4:]
            ],
            f"updates move the policy faster than the KL term holds it to {last.reference}",
            _change(last),
        )

    def _limit_of(self, reading: Reading) -> float:
        coefficient = _coefficient(reading)[1]
        if isinstance(coefficient, AdaptiveKl):
            return min(self.limit, self.targets * coefficient.target)
        return self.limit


def _coefficient(reading: Reading) -> tuple[str, float | AdaptiveKl]:
    """Where the coefficient of a recipe stands, and what it is."""
    if reading.recipe.compute_advantages.needs_reference:
        return "compute_advantages.kl_coef", reading.recipe.compute_advantages.kl_coef
    return "update_policy.loss.kl_coef", reading.recipe.update_policy.loss.kl_coef


def _change(reading: Reading) -> Change:
    place, coefficient = _coefficient(reading)
    if isinstance(coefficient, AdaptiveKl):
        place = f"{place}.start"
    return change_of(reading, place, rounded(STRONGER * start_of(coefficient)))
