"""The KL coefficient of an iteration: where it stands in its recipe, and what it was when it was used."""

from __future__ import annotations

from dataclasses import dataclass

from rollbook.components.coefficients import AdaptiveKl, start_of
from rollbook.views.doctor.iteration import Reading


@dataclass(frozen=True)
class KlCoefficient:
    """Of a KL in the reward, or of one in the loss; a recipe has one of them.

    Attributes:
        place: within the recipe.
        setting: what stands there.
        used: its value in the iteration; None for one that follows a target and is not stored.
    """

    place: str
    setting: float | AdaptiveKl
    used: float | None

    @property
    def start(self) -> float:
        """The number that says how strong it is: of one that follows a target, what it begins with."""
        return start_of(self.setting)

    @property
    def place_of_start(self) -> str:
        """Where that number stands."""
        return f"{self.place}.start" if isinstance(self.setting, AdaptiveKl) else self.place


def kl_coefficient_of(reading: Reading) -> KlCoefficient:
    """The KL coefficient of an iteration; 0 without a KL term."""
    compute, loss = reading.recipe.compute_advantages, reading.recipe.update_policy.loss
    place, setting = (
        ("compute_advantages.kl_coef", compute.kl_coef)
        if compute.needs_reference
        else ("update_policy.loss.kl_coef", loss.kl_coef)
    )
    # It changes between iterations alone, and is a metric of the stage that uses it.
    used = reading.metrics.get("kl_coef") if isinstance(setting, AdaptiveKl) else setting
    return KlCoefficient(place, setting, used)
