"""Coefficients of an update as they stand: fixed, or following a target along the chain of iterations."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rollbook.components.coefficients import AdaptiveEntropy, AdaptiveKl, KlCoefficient, start_of
from rollbook.core.errors import ArtifactError

if TYPE_CHECKING:
    from rollbook.components.losses.base import Loss

KL_COEF, REWARD_KL_COEF = "kl_coef", "reward_kl_coef"
ENTROPY_COEF, ENTROPY = "entropy_coef", "entropy"
"""Keys of the controllers in `optimizers/<key>/state.json`."""

STATE_FILE = "state.json"
"""Counters and controllers in an optimizer folder."""


def read_state(folder: Path) -> tuple[int, dict[str, float]]:
    """Optimizer steps taken, and the coefficients that follow a target, by name; reads no tensors.

    Raises:
        ArtifactError: if the folder is no optimizer state.
    """
    try:
        content = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
        controllers = {name: float(value) for name, value in content["controllers"].items()}
        return int(content["optimizer_step"]), controllers
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(f"{folder}: is not an optimizer state: {error}") from error


def standing(
    setting: float | AdaptiveKl | AdaptiveEntropy, state: Mapping[str, float], name: str
) -> float:
    """A coefficient as it stands: a fixed one, or what the iteration before left, or else its start.

    The recipe before may have had other bounds, which is why those of an entropy coefficient are applied again.
    """
    if isinstance(setting, (int, float)):
        return setting
    value = state.get(name, start_of(setting))
    return (
        min(max(value, setting.min), setting.max) if isinstance(setting, AdaptiveEntropy) else value
    )


class Controllers:
    """Follows the targets of one iteration's loss and of the KL in its rewards.

    Args:
        loss: of the recipe, with its coefficients as configured.
        reward_kl: `compute_advantages.kl_coef`; 0 = the KL, if any, is in the loss.
        state: what the iteration before left: values by name; empty at the beginning of a chain.
    """

    def __init__(self, loss: Loss, reward_kl: KlCoefficient, state: Mapping[str, float]) -> None:
        self._loss, self._reward_kl, self._state = loss, reward_kl, dict(state)

    @property
    def follows_kl(self) -> bool:
        """Whether a KL coefficient follows a target."""
        return isinstance(self._kl_setting[1], AdaptiveKl)

    @property
    def kl_coef(self) -> float:
        """Of the KL term in the loss."""
        return self._value(self._loss.kl_coef, KL_COEF)

    @property
    def entropy_coef(self) -> float:
        """That the next optimizer step is taken with."""
        setting = self._loss.entropy_coef
        value = self._value(setting, ENTROPY_COEF)
        if isinstance(setting, AdaptiveEntropy):
            return setting.applied(value, self._state.get(ENTROPY))
        return value

    def loss(self) -> Loss:
        """The loss with both as they stand."""
        return self._loss.with_coefficients(self.kl_coef, self.entropy_coef)

    def after_step(self, entropy: float) -> None:
        """Follows the entropy target, given the token mean of the step's entropy; NaN says nothing."""
        setting = self._loss.entropy_coef
        if isinstance(setting, AdaptiveEntropy) and not math.isnan(entropy):
            self._state[ENTROPY_COEF] = setting.next(self._value(setting, ENTROPY_COEF), entropy)
            self._state[ENTROPY] = entropy

    def after_iteration(self, kl: float, rows: int) -> None:
        """Follows the KL target, given the KL per token of the iteration's `rows` rollouts; NaN says nothing."""
        name, setting = self._kl_setting
        if isinstance(setting, AdaptiveKl) and not math.isnan(kl):
            self._state[name] = setting.next(self._value(setting, name), kl, rows)

    def state(self) -> dict[str, float]:
        """What the next iteration needs: nothing if all coefficients are fixed."""
        names = {self._kl_setting[0]} if self.follows_kl else set()
        if isinstance(self._loss.entropy_coef, AdaptiveEntropy):
            names |= {ENTROPY_COEF, ENTROPY}
        return {name: value for name, value in self._state.items() if name in names}

    @property
    def _kl_setting(self) -> tuple[str, KlCoefficient]:
        """Name in the state and setting of the KL that is on, in the reward or in the loss."""
        if self._reward_kl != 0:
            return REWARD_KL_COEF, self._reward_kl
        return KL_COEF, self._loss.kl_coef

    def _value(self, setting: float | AdaptiveKl | AdaptiveEntropy, name: str) -> float:
        return standing(setting, self._state, name)
