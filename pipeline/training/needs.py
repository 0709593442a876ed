"""Which log-probs an update needs that `measure_logprobs` must measure. Light: decided before torch is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pipeline.config import UpdatePolicy


class Measurements(NamedTuple):
    """What must be measured.

    Attributes:
        old: the policy before the update. With a single optimizer step it is the current one.
        reference: the frozen policy of the KL term.
    """

    old: bool
    reference: bool

    @property
    def any(self) -> bool:
        return self.old or self.reference


def measurements_of(update: UpdatePolicy) -> Measurements:
    """What this recipe's update cannot do without."""
    several_steps = update.epochs * update.optimizer_steps > 1
    return Measurements(
        old=update.old_logprobs == "measured" and several_steps,
        reference=update.loss.needs_reference,
    )
