"""CISPO: policy gradient weighed by a capped ratio, so that no token ever loses its gradient.

loss = (1/N) Σ_i Σ_t [ −sg(clamp(ρ, floor, cap)) A ℓ + kl_coef · KL ]

MiniMax-M1, arXiv 2506.13585; ScaleRL, arXiv 2510.13786, with cap 5; TRL 1.16 `loss_type="cispo"`; verl `cispo`.
Unlike GRPO the ratio is a constant weight and what is capped is that weight: GRPO's clipping drops the rare tokens
that change most. `cap` is the ratio itself, as TRL's `epsilon_high`, and required: in TRL an unset one silently caps
at 0.2. verl clamps to [1 − clip_ratio_low, 1 + clip_ratio_high]; its 1 and 4 are floor 0 and cap 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import NonNegativeFloat, PositiveFloat, field_validator, model_validator

from rollbook.components.losses.aggregate import Aggregation
from rollbook.components.losses.base import Loss, PolicyTerm, Tokens


class Cispo(Loss):
    """Policy gradient with a capped ratio as weight.

    Attributes:
        cap: largest ratio, itself and not 1 + ε; required.
        floor: smallest ratio; 0 = none.
    """

    clip_metrics: ClassVar[Mapping[str, str]] = {"cispo_clip_ratio": "clip_ratio/high_mean"}

    aggregation: Aggregation = "token_mean"
    cap: PositiveFloat = 0.0  # refused: there is no default
    floor: NonNegativeFloat = 0.0

    @field_validator("cap", mode="before")
    @classmethod
    def _cap_is_given(cls, value: object) -> object:
        if not value:
            raise ValueError(
                "cispo needs `cap`, the largest ratio itself and not 1 + ε; ScaleRL (arXiv 2510.13786) has 5.0"
            )
        return value

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> Cispo:
        if not self.floor < self.cap:
            raise ValueError(f"floor {self.floor:g} must be below cap {self.cap:g}")
        return self

    def ratio_bounds(self) -> tuple[float, float]:
        """See `Loss.ratio_bounds`."""
        return self.floor, self.cap

    def policy_term(self, tokens: Tokens) -> PolicyTerm:
        """See the top of the file."""
        ratio, advantages = tokens.ratio.detach(), tokens.advantages
        return PolicyTerm(
            loss=-ratio.clamp(self.floor, self.cap) * advantages * tokens.policy_logprobs,
            clipped_low=(ratio < self.floor) & (advantages < 0),
            clipped_high=(ratio > self.cap) & (advantages > 0),
        )
