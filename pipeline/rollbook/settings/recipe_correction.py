"""Settings of rollout correction: what is done where engine and trainer disagree about log-probs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, PositiveFloat, model_validator

from rollbook.core.component import Model


class Rejection(Model):
    """Takes tokens out of the loss mask where engine and trainer disagree too much (verl's `rollout_rs`).

    `statistic` of log(trainer / engine): k1 (−log ratio), k2 or k3 of each token, or their sum, mean or max over the
    rollout. Bounds of k1 are on the ratio engine / trainer; of k2 and k3 there is only `high`, on the estimate itself.
    """

    statistic: Literal[
        "token_k1",
        "token_k2",
        "token_k3",
        "sequence_sum_k1",
        "sequence_sum_k2",
        "sequence_sum_k3",
        "sequence_mean_k1",
        "sequence_mean_k2",
        "sequence_mean_k3",
        "sequence_max_k2",
        "sequence_max_k3",
    ]
    low: PositiveFloat | None = None
    """Default for k1: 1 / high."""
    high: PositiveFloat

    @model_validator(mode="after")
    def _bounds_leave_something(self) -> Rejection:
        if not self.statistic.endswith("k1"):
            if self.low is not None:
                raise ValueError(
                    f"{self.statistic} is never negative and has no `low`; leave it out"
                )
            return self
        if not (self.low or 1 / self.high) < self.high:
            raise ValueError(
                f"bounds {self.low or 1 / self.high:g} and {self.high:g} of {self.statistic} leave no ratio between"
            )
        return self


class RolloutCorrection(Model):
    """Weights c = trainer's old policy / engine, for rollouts of an engine whose log-probs are not the trainer's.

    TRL's `vllm_importance_sampling_*` and verl's `rollout_is`, `rollout_rs`. Weights multiply the policy term; those of
    weight 0 stay in every denominator, rejected ones leave it.
    """

    weights: (
        Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] | None
    ) = "token_truncate"
    """Per token, or the product over the rollout; clamped to the bounds, or 0 outside of them."""
    max: PositiveFloat | None = 2.0
    min: PositiveFloat | None = None
    normalize: bool = False
    """Divide the weights by their mean over the iteration."""
    reject: list[Rejection] = Field(default_factory=list)
    """A token leaves the loss mask if any of these rejects it; each looks at all tokens."""

    @model_validator(mode="after")
    def _has_bounds(self) -> RolloutCorrection:
        if self.weights is not None and self.max is None and self.min is None:
            raise ValueError(f"weights {self.weights} needs `max`, `min` or both")
        if self.max is not None and self.min is not None and not self.min < self.max:
            raise ValueError(f"min {self.min} must be below max {self.max}")
        if self.weights is None and self.normalize:
            raise ValueError(
                "normalize divides weights, and weights is null; leave one of them out"
            )
        if self.weights is None and not self.reject:
            raise ValueError("neither weights nor reject is set; say `rollout_correction: off`")
        return self


def _correction(value: Any) -> Any:
    """One error for what is neither a word nor a mapping, instead of one for each that it might have been."""
    if isinstance(value, Mapping):
        return RolloutCorrection.model_validate(value)
    if value in ("auto", "off") or isinstance(value, RolloutCorrection):
        return value
    raise ValueError("must be auto, off, or {weights: …, max: …}")


CorrectionSetting = Annotated[
    Literal["auto", "off"] | RolloutCorrection, PlainValidator(_correction)
]
