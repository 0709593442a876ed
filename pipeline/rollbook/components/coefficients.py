"""Coefficients that follow a target: KL term, entropy bonus. Their values travel in `optimizers/<key>`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import NonNegativeFloat, PlainValidator, PositiveFloat, model_validator

from rollbook.core.component import Model


class AdaptiveKl(Model):
    """A KL coefficient that grows while the KL is above the target and shrinks below it (arXiv 1909.08593 §2.2).

    β ← β · (1 + clamp(KL / target − 1, ±0.2) · rows / horizon), once per iteration; verl's AdaptiveKLController. The
    factor is kept within [0.1, 10]: with more than five times `horizon` rollouts it would turn negative.

    Attributes:
        start: coefficient of the first iteration of a chain.
        target: KL to the reference per token, nats: mean over rollouts of their token means; 0.05 is much.
        horizon: rollouts over which the coefficient may change by a fifth.
    """

    start: PositiveFloat
    target: PositiveFloat
    horizon: PositiveFloat = 10_000.0

    def next(self, value: float, kl: float, rows: int) -> float:
        """The coefficient after an iteration of `rows` rollouts with mean KL `kl`."""
        error = min(max(kl / self.target - 1, -0.2), 0.2)
        return value * min(max(1 + error * rows / self.horizon, 0.1), 10.0)


class AdaptiveEntropy(Model):
    """An entropy coefficient that rises by `delta` after steps whose entropy is at or below the target, else falls.

    It applies only if the step before was at or below the target, never in the first (Skywork-OR1, arXiv 2505.22312
    §4; TRL 1.16).

    Attributes:
        start: coefficient of the first step of a chain.
        target: token mean of the policy's entropy to keep, nats.
        delta: change per optimizer step.
        min, max: bounds of the coefficient.
    """

    start: NonNegativeFloat = 0.0
    target: NonNegativeFloat
    delta: PositiveFloat = 0.005
    min: NonNegativeFloat = 0.0
    max: PositiveFloat = 1.0

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> AdaptiveEntropy:
        if not self.min <= self.start <= self.max:
            raise ValueError(
                f"start {self.start} must lie between min {self.min} and max {self.max}"
            )
        return self

    def applied(self, value: float, last_entropy: float | None) -> float:
        """The coefficient that a step is taken with, given the entropy of the step before (None: there was none)."""
        return value if last_entropy is not None and last_entropy <= self.target else 0.0

    def next(self, value: float, entropy: float) -> float:
        """The coefficient after a step with this token mean of the entropy."""
        change = self.delta if entropy <= self.target else -self.delta
        return min(max(value + change, self.min), self.max)


Following = TypeVar("Following", AdaptiveKl, AdaptiveEntropy)


def _number_or(model: type[Following], least: float) -> PlainValidator:
    """One error for what is neither a number nor a mapping, instead of one for each that it might have been."""

    def validate(value: Any) -> float | Following:
        if isinstance(value, Mapping):
            return model.model_validate(value)
        if isinstance(value, model):
            return value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError("must be a number, or follow a target: {start: …, target: …}")
        if not least <= value < math.inf:
            raise ValueError(f"must be a finite number of at least {least:g}")
        return float(value)

    return PlainValidator(validate)


KlCoefficient = Annotated[float | AdaptiveKl, _number_or(AdaptiveKl, 0.0)]
EntropyCoefficient = Annotated[float | AdaptiveEntropy, _number_or(AdaptiveEntropy, 0.0)]


def start_of(coefficient: float | AdaptiveKl | AdaptiveEntropy) -> float:
    """The value a coefficient begins with; of a fixed one the value itself."""
    return coefficient if isinstance(coefficient, (int, float)) else coefficient.start
