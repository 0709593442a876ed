"""KL-Cov: unclipped surrogate, with a penalty on the tokens that drive entropy down most.

loss = (1/N) Σ_i Σ_t [ −ρ A + penalty · |Δ| · 1[among the highest covariances] + kl_coef · KL ]

arXiv 2505.22617; verl `kl_cov`. The max(1, penalty_share · N_b) tokens of highest covariance of advantage and
log-prob are held to the old policy by |Δ| = |ℓ − ℓ_old|. Unlike GRPO nothing is clipped. N_b are the tokens of the
micro-batch, over which the covariance is taken too, so memory settings change the result.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, PositiveFloat

from rollbook.components.losses.base import Loss, PolicyTerm, Tokens
from rollbook.components.losses.covariance import covariances, largest
from rollbook.components.losses.ratio import RatioLevel


class KlCov(Loss):
    """Holds tokens of high covariance to the old policy.

    Attributes:
        penalty_share: share of the tokens that are held.
        penalty: weight of |Δ|.
    """

    pools_rows: ClassVar[bool] = True
    ratio_levels: ClassVar[tuple[RatioLevel, ...]] = ("token",)

    penalty_share: Annotated[float, Field(gt=0, le=1)] = 2e-4
    penalty: PositiveFloat = 1.0

    def policy_term(self, tokens: Tokens) -> PolicyTerm:
        """See the top of the file."""
        count = max(int(self.penalty_share * tokens.loss_mask.sum().item()), 1)
        held = largest(covariances(tokens), tokens.loss_mask, count)
        surrogate = -tokens.ratio * tokens.advantages
        nowhere = held.new_zeros(held.shape)
        return PolicyTerm(
            (surrogate + self.penalty * tokens.log_ratio.abs()).where(held, surrogate),
            nowhere,
            nowhere,
        )
