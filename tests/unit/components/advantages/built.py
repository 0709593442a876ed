"""Estimators built as params.yaml builds them."""

from __future__ import annotations

from typing import Any

from rollbook.components.advantages.base import (
    AdvantageEstimator,
    AdvantageInputs,
    AdvantageOutputs,
)
from rollbook.core.registry import build


def estimate(name: str, inputs: AdvantageInputs, **options: Any) -> AdvantageOutputs:
    """What `{name: ..., **options}` makes of the inputs."""
    estimator = build("advantages", {"name": name, **options})
    assert isinstance(estimator, AdvantageEstimator)
    return estimator(inputs)


def tokens_of(outputs: AdvantageOutputs) -> list[list[float]]:
    """Token advantages as lists."""
    tokens = outputs.token_advantages
    assert tokens is not None
    return [
        [float(value) for value in tokens.values[start : start + length]]
        for start, length in zip(tokens.starts, tokens.lengths, strict=True)
    ]
