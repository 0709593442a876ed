"""Which log-probs an update needs that `measure_logprobs` must measure. Light: decided before torch is imported."""

from __future__ import annotations

from typing import NamedTuple


class Measurements(NamedTuple):
    """What must be measured.

    Attributes:
        old: the policy before the update.
        reference: the frozen policy of the KL term.
    """

    old: bool
    reference: bool

    @property
    def any(self) -> bool:
        return self.old or self.reference


def measurements_of(
    old_logprobs: str, epochs: int, optimizer_steps: int, needs_reference: bool
) -> Measurements:
    """What an update with these settings cannot do without. In a single optimizer step old is the current policy."""
    several_steps = epochs * optimizer_steps > 1
    return Measurements(old_logprobs == "measured" and several_steps, needs_reference)
