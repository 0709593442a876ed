"""Clip-Cov: clipped surrogate without a few of the tokens that drive entropy down most.

loss = (1/N) Σ_i Σ_t [ −min(ρ A, clamp(ρ, 1 − clip_low, 1 + clip_high) A) · 1[not drawn] + kl_coef · KL ]

arXiv 2505.22617; verl `clip_cov`. Unlike GRPO, of the tokens that PPO leaves unclipped and whose covariance of
advantage and log-prob lies between cov_low and cov_high, up to max(1, drop_share · N_b) are drawn and lose their
gradient; N_b are the tokens of the micro-batch, over which the covariance is taken too, so memory settings change the
result. verl draws at random. Here the order is that of a hash of the log-probs: the same inputs drop the same tokens,
wherever they stand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field, model_validator

from rollbook.components.losses.base import Loss, PolicyTerm, Tokens
from rollbook.components.losses.clip import Clipping
from rollbook.components.losses.covariance import covariances, largest
from rollbook.components.losses.ratio import RatioLevel

if TYPE_CHECKING:
    from torch import Tensor


class ClipCov(Clipping, Loss):
    """Drops tokens of high covariance.

    Attributes:
        drop_share: largest share of the tokens to drop.
        cov_low, cov_high: only tokens whose covariance is above the one and below the other.
    """

    pools_rows: ClassVar[bool] = True
    ratio_levels: ClassVar[tuple[RatioLevel, ...]] = ("token",)

    drop_share: Annotated[float, Field(gt=0, le=1)] = 2e-4
    cov_low: float = 1.0
    cov_high: float = 5.0

    @model_validator(mode="after")
    def _covariances_are_a_range(self) -> ClipCov:
        if not self.cov_low < self.cov_high:
            raise ValueError(f"cov_low {self.cov_low:g} must be below cov_high {self.cov_high:g}")
        return self

    def policy_term(self, tokens: Tokens) -> PolicyTerm:
        """See the top of the file. The row metric is the number of dropped tokens; they do not count as clipped."""
        term = super().policy_term(tokens)
        dropped = self._drawn(tokens, term.clipped_low | term.clipped_high)
        return PolicyTerm(
            term.loss.where(~dropped, 0.0),
            term.clipped_low,
            term.clipped_high,
            {"clip_cov/dropped_tokens": dropped.sum(-1).double()},
        )

    def _drawn(self, tokens: Tokens, clipped: Tensor) -> Tensor:
        covariance = covariances(tokens)
        within = (covariance > self.cov_low) & (covariance < self.cov_high)
        limit = max(int(self.drop_share * tokens.loss_mask.sum().item()), 1)
        noise = (tokens.policy_logprobs.detach().double() * 1e4).sin() * 1e4
        return largest(noise - noise.floor(), within & tokens.loss_mask & ~clipped, limit)
