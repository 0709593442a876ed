"""entropy_blowup: the policy becomes more random as it trains."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import PositiveFloat

from pipeline.coefficients import start_of
from pipeline.doctor.checks.base import Check, change_of, rounded
from pipeline.doctor.finding import Finding
from pipeline.doctor.readings import Readings


class EntropyBlowup(Check):
    """Entropy far above that of the first iteration.

    Attributes:
        factor: times the first iteration's entropy; training on right and wrong answers lowers it, to 0.3 of the first
            in six iterations of the shipped params.yaml, so half more than at first is the wrong way.
        rise: nats per token it must have risen by as well, since a policy that is sure of itself may double from near
            0.
    """

    factor: PositiveFloat = 1.5
    rise: PositiveFloat = 0.3

    def __call__(self, run: Readings) -> Iterator[Finding]:
        measured = run.having("entropy")
        if len(measured) < 2:
            return
        start = measured[0].metrics["entropy"]
        limit = max(self.factor * start, start + self.rise)
        found = [each for each in measured if each.metrics["entropy"] > limit]
        if not found:
            return
        last = found[-1]
        coefficient = start_of(last.recipe.update_policy.loss.entropy_coef)
        rate = last.recipe.update_policy.learning_rate
        yield self.finding(
            "serious" if last is measured[-1] else "warning",
            found,
            f"entropy rose from {start:.2g} to {last.metrics['entropy']:.2g} nats per token",
            [
                f"{each.key}: {each.metrics['entropy']:.3g} nats per token"
                for each in [measured[0], *found[-3:]]
            ],
            "the entropy bonus outweighs the reward"
            if coefficient
            else "steps are so large that they break what the policy knew",
            change_of(last, "update_policy.loss.entropy_coef", rounded(coefficient / 10))
            if coefficient
            else change_of(last, "update_policy.learning_rate", rounded(rate / 10)),
        )
