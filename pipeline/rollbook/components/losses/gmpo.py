"""GMPO: the geometric mean of a rollout's clipped token ratios.

loss = (1/R) Σ_i [ −A exp((1/n_i) Σ_t Δ') + (1/n_i) Σ_t kl_coef · KL ]
Δ' = min(Δ, clip_high) if A > 0, else max(Δ, −clip_low)

arXiv 2507.20673; TRL 1.16 `experimental.gmpo`; verl `geo_mean`. Unlike GRPO tokens are averaged in log space, so that
a single large ratio moves little, and clipped there too: bounds are on Δ, by default ±0.4, the ratio from 0.67 to
1.49. Unlike GSPO each token is clipped before the mean. Token weights of rollout correction enter as their geometric
mean (verl); with `top_entropy` only those tokens make up the mean (TRL).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from pydantic import PositiveFloat

from rollbook.components.losses.aggregate import Aggregation
from rollbook.components.losses.base import Loss, PolicyTerm, Tokens
from rollbook.components.losses.ratio import RatioLevel

if TYPE_CHECKING:
    from torch import Tensor

SMALLEST = 1e-10
"""Stands for a weight of 0, which has no logarithm."""


class Gmpo(Loss):
    """Geometric mean of token ratios that are clipped in log space.

    Attributes:
        clip_low: the log-ratio is not followed below −clip_low where the advantage is not positive.
        clip_high: nor above clip_high where it is.
    """

    weighs_rollouts_itself: ClassVar[bool] = True
    pools_tokens: ClassVar[bool] = True
    ratio_levels: ClassVar[tuple[RatioLevel, ...]] = ("token",)

    aggregation: Aggregation = "row_mean"
    kl_bias_correction: bool = False
    clip_low: PositiveFloat = 0.4
    clip_high: PositiveFloat = 0.4

    def ratio_bounds(self) -> tuple[float, float]:
        """See `Loss.ratio_bounds`."""
        return math.exp(-self.clip_low), math.exp(self.clip_high)

    def policy_term(self, tokens: Tokens) -> PolicyTerm:
        """See the top of the file. The mean stands on every token of its row, for `row_mean` to find it there."""
        log_ratio, advantages = tokens.log_ratio, tokens.advantages
        clipped = log_ratio.clamp(max=self.clip_high).where(
            advantages > 0, log_ratio.clamp(min=-self.clip_low)
        )
        weights = tokens.rollout_weights.clamp(min=SMALLEST).log()
        return PolicyTerm(
            loss=-advantages * _row_mean(clipped + weights, tokens.policy_mask).exp(),
            clipped_low=(log_ratio < -self.clip_low) & (advantages < 0),
            clipped_high=(log_ratio > self.clip_high) & (advantages > 0),
        )


def _row_mean(values: Tensor, mask: Tensor) -> Tensor:
    return values.where(mask, 0.0).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
