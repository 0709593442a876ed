"""Whether a critic that does badly learns too slowly or in steps that are too large, and what to do about it.

    nothing said = ½ (mean(R)² + Var(R))        the value loss of a critic that says 0 everywhere, as it does at first

A value loss far above that is made by the critic's own steps. Without one it is slow, however large its errors are.
"""

from __future__ import annotations

from collections.abc import Sequence

from rollbook.views.doctor.checks.base import change_of, rounded
from rollbook.views.doctor.finding import Change
from rollbook.views.doctor.iteration import Reading

NEEDED = ("value_loss", "returns/mean", "returns/std")
USUAL = 10.0
"""Learning rate of a critic in those of its policy, as in verl. The explained variance of preset `ppo`, whose head
learns at the policy's rate, is -0.12 on average of iterations 3 to 8 of the embedded policy, at this rate -0.04."""
FACTOR = 10.0
"""Between a learning rate that is too high and one to try."""
OVERSHOT = 1.5
"""Value loss, in those of a critic that says 0, from where on its own steps are taken to have made it. Real
runs at the usual rate stay below 1; a head at ten times that came to 1.9, a network at 30 times to 9.6."""


def overshot(readings: Sequence[Reading]) -> bool:
    """Whether the critic was once far worse than one that says 0 everywhere, in any of these iterations."""
    return any(
        each.metrics["value_loss"] > OVERSHOT * _nothing_said(each)
        for each in readings
        if is_mean(each)
    )


def is_mean(reading: Reading) -> bool:
    """Whether the value loss is a mean over tokens, as the losses are that it is compared with."""
    critic = reading.recipe.update_policy.critic
    return critic is not None and critic.aggregation == "token_mean"


def below_usual(reading: Reading) -> bool:
    """Whether the critic learns more slowly than is usual beside its policy."""
    return reading.recipe.update_policy.critic_learning_rate < rounded(_usual(reading))


def faster(reading: Reading) -> Change:
    """The usual learning rate of a critic, or a higher one than that."""
    rate = reading.recipe.update_policy.critic_learning_rate
    return _rate(reading, _usual(reading) if below_usual(reading) else rate * FACTOR)


def slower(reading: Reading) -> Change:
    """A lower learning rate of the critic."""
    return _rate(reading, reading.recipe.update_policy.critic_learning_rate / FACTOR)


def _usual(reading: Reading) -> float:
    return USUAL * reading.recipe.update_policy.learning_rate


def _rate(reading: Reading, suggested: float) -> Change:
    return change_of(reading, "update_policy.critic.learning_rate", rounded(min(suggested, 1.0)))


def _nothing_said(reading: Reading) -> float:
    return 0.5 * (reading.metrics["returns/mean"] ** 2 + reading.metrics["returns/std"] ** 2)
