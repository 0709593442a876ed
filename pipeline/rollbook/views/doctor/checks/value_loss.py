"""value_loss: a critic whose loss does not fall from iteration to iteration.

    relative loss = value_loss / (½ Var(R))        R: the returns of the iteration's tokens

½ Var(R) is the loss of the best constant, a mean over tokens, so critics with another aggregation are not judged. A
policy that learns changes the returns and with them the plain loss, so losses of different iterations are compared in
this measure.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean
from typing import Annotated

from pydantic import Field, NonNegativeFloat

from rollbook.core.component import Share
from rollbook.views.doctor.chain import ChainReading
from rollbook.views.doctor.checks.base import Check
from rollbook.views.doctor.checks.critic_pace import NEEDED, faster, is_mean, overshot, slower
from rollbook.views.doctor.finding import Finding
from rollbook.views.doctor.iteration import Reading
from rollbook.views.doctor.statistics import first_and_last


class ValueLoss(Check):
    """A value loss that does not fall.

    Attributes:
        after: iterations before this is asked: two say nothing of where the loss goes.
        fall: share of the relative loss of the first third of the iterations that the last third should be below it.
        good: relative loss that need not fall any further: below 1 the critic says more than a constant does. How far
            it can fall depends on chance; the returns of the embedded policy leave it at 0.95 and above.
    """

    after: Annotated[int, Field(ge=2)] = 3
    fall: Share = 0.05
    good: NonNegativeFloat = 1.0

    def __call__(self, run: ChainReading) -> Iterator[Finding]:
        measured = [
            each
            for each in run.having(*NEEDED)
            if each in run.taught and is_mean(each) and each.metrics["returns/std"] > 0
        ]
        if len(measured) < self.after:
            return
        first, last = first_and_last(measured)
        before, after = (fmean(map(_relative, part)) for part in (first, last))
        if after <= max(self.good, (1 - self.fall) * before):
            return
        wild = overshot(measured)
        yield self.finding(
            "warning",
            measured,
            f"the value loss is {after:.2g} times that of a constant, {before:.2g} times at the beginning",
            [_evidence(each) for each in dict.fromkeys((*first[:2], *last[-2:]))],
            "the critic takes steps that are too large"
            if wild
            else "the critic learns too slowly: the policy changes the returns faster than it can follow",
            slower(last[-1]) if wild else faster(last[-1]),
        )


def _relative(reading: Reading) -> float:
    return reading.metrics["value_loss"] / (0.5 * reading.metrics["returns/std"] ** 2)


def _evidence(reading: Reading) -> str:
    return (
        f"{reading.key}: value_loss {reading.metrics['value_loss']:.3g}, returns/std "
        f"{reading.metrics['returns/std']:.3g}, relative {_relative(reading):.2g}"
    )
