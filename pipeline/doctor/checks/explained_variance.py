"""explained_variance: a critic that says less of the returns than their mean does.

    explained variance = 1 − Var(R − V) / Var(R)        before the update; 0: as good as a constant, below: worse

Advantages of GAE are then noisier than with no critic at all.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import NonNegativeFloat, PositiveInt

from pipeline.doctor.chain import ChainReading
from pipeline.doctor.checks.base import Check, change_of, rounded
from pipeline.doctor.finding import Change, Finding
from pipeline.doctor.iteration import Reading

METRIC = "explained_variance"
FASTER, SLOWER = 3.0, 3.0


class ExplainedVariance(Check):
    """An explained variance at or below 0 that should have left it.

    Attributes:
        after: iterations that a critic may take to learn something; before its first update it says 0 everywhere and
            explains nothing, before its second it has seen one table of rollouts.
        wild: below minus this much its steps are taken to be too large, above it too small.
    """

    after: PositiveInt = 2
    wild: NonNegativeFloat = 0.1

    def __call__(self, run: ChainReading) -> Iterator[Finding]:
        learned = [each for each in run.having(METRIC) if each in run.taught][self.after :]
        found = [each for each in learned if each.metrics[METRIC] <= 0]
        if not found or found[-1] is not learned[-1]:
            return
        last = found[-1]
        is_wild = last.metrics[METRIC] < -self.wild
        yield self.finding(
            "warning",
            found,
            f"the critic explains {last.metrics[METRIC]:.2g} of the variance of the returns: a mean would do as well",
            [f"{each.key}: {METRIC} {each.metrics[METRIC]:.3g}" for each in found[-4:]],
            "its steps are too large, so it says different things of like tokens"
            if is_wild
            else "it learns too slowly to have learned anything yet",
            _change(last, is_wild),
        )


def _change(reading: Reading, is_wild: bool) -> Change:
    rate = reading.recipe.update_policy.critic_learning_rate
    suggested = rate / SLOWER if is_wild else rate * FASTER
    return change_of(reading, "update_policy.critic.learning_rate", rounded(min(suggested, 1)))
