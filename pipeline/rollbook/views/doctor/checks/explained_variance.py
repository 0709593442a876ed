"""explained_variance: a critic that says less of the returns than their mean does.

    explained variance = 1 − Var(R − V) / Var(R)        before the update; 0: as good as a constant, below: worse

Advantages of GAE are then noisier than with no critic at all.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import NonNegativeFloat, PositiveInt

from rollbook.views.doctor.chain import ChainReading
from rollbook.views.doctor.checks.base import Check, change_of
from rollbook.views.doctor.checks.critic_pace import NEEDED, below_usual, faster, overshot, slower
from rollbook.views.doctor.finding import Change, Finding
from rollbook.views.doctor.iteration import Reading

METRIC = "explained_variance"


class ExplainedVariance(Check):
    """An explained variance at or below 0 that should have left it.

    Attributes:
        after: iterations that a critic may take to learn something; before its first update it says 0 everywhere and
            explains nothing, before its second it has seen one table of rollouts.
        wild: below minus this much its steps are taken to be too large. Where a head learns as slowly as its policy, as
            in preset `ppo`, it is -0.01 to -0.19 after the second iteration (embedded policy, seeds 0 to 2), and with
            a head at a hundred times that rate -0.19 to -0.37.
    """

    after: PositiveInt = 2
    wild: NonNegativeFloat = 0.3

    def __call__(self, run: ChainReading) -> Iterator[Finding]:
        asked = [each for each in run.having(METRIC, *NEEDED) if each in run.taught]
        learned = asked[self.after :]
        found = [each for each in learned if each.metrics[METRIC] <= 0]
        if not found or found[-1] is not learned[-1]:
            return
        last = found[-1]
        is_wild = last.metrics[METRIC] < -self.wild or overshot(asked)
        cause, change = _diagnosed(last, is_wild)
        yield self.finding(
            "warning" if is_wild else "note",
            found,
            f"the critic explains {last.metrics[METRIC]:.2g} of the variance of the returns: a mean would do as well",
            [
                f"{each.key}: {METRIC} {each.metrics[METRIC]:.3g}, value_loss {each.metrics['value_loss']:.3g}"
                for each in found[-4:]
            ],
            cause,
            change,
        )


def _diagnosed(reading: Reading, is_wild: bool) -> tuple[str, Change]:
    """Cause, and what to change."""
    if is_wild:
        return "its steps are too large, so it says different things of like tokens", slower(
            reading
        )
    if below_usual(reading):
        return "it learns too slowly: ten times the learning rate of the policy is usual", faster(
            reading
        )
    alone = reading.recipe.generate_rollouts.group_size == 1
    return (
        "to the critic the returns look like chance, and then advantages need none",
        change_of(
            reading, "compute_advantages.estimator", "reinforce_plus_plus" if alone else "group"
        ),
    )
