"""VESPO: policy gradient weighed by a smooth function of the ratio of the whole rollout.

loss = (1/N) Σ_i Σ_t [ −sg(φ_i) A ℓ + kl_coef · KL ]
φ = exp(λ + k log w − λ w),  log w_i = clamp(Σ_t Δ + Σ_t log c)

arXiv 2602.10693; TRL 1.16 `loss_type="vespo"`. (k, λ) = (k_pos, lambda_pos) if A ≥ 0, else (k_neg, lambda_neg); φ(1)
= 1. Unlike GRPO a rollout that has drifted either way fades smoothly as a whole. c are the token weights of rollout
correction: they enter w, and are not multiplied in once more. Weights of whole rollouts would be counted once per
token.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from pydantic import PositiveFloat

from rollbook.components.losses.base import Loss, PolicyTerm, Tokens
from rollbook.components.losses.ratio import LOG_RATIO_LIMIT, RatioLevel

if TYPE_CHECKING:
    from torch import Tensor

LOG_SMALLEST = math.log(1e-8)
"""Lower bound of log w and of log c: a weight may be 0."""


class Vespo(Loss):
    """Gamma-shaped weight of rollouts.

    Attributes:
        k_pos, lambda_pos: power of w and decay in w where the advantage is not negative.
        k_neg, lambda_neg: where it is.
    """

    weighs_rollouts_itself: ClassVar[bool] = True
    needs_token_weights: ClassVar[bool] = True
    ratio_levels: ClassVar[tuple[RatioLevel, ...]] = ("token",)

    k_pos: PositiveFloat = 2.0
    lambda_pos: PositiveFloat = 3.0
    k_neg: PositiveFloat = 3.0
    lambda_neg: PositiveFloat = 2.0

    def policy_term(self, tokens: Tokens) -> PolicyTerm:
        """See the top of the file. The row metric is φ, its mean over a row's tokens."""
        phi, mask = self._phi(tokens), tokens.loss_mask
        counted = mask | ~mask.any(-1, keepdim=True)  # φ is 1 in a row without tokens
        nowhere = mask.new_zeros(mask.shape)
        return PolicyTerm(
            -phi * tokens.advantages * tokens.policy_logprobs,
            nowhere,
            nowhere,
            {"vespo/phi_seq_mean": phi.where(counted, 0.0).sum(-1) / counted.sum(-1)},
        )

    def _phi(self, tokens: Tokens) -> Tensor:
        weights = tokens.rollout_weights.log().clamp(LOG_SMALLEST, LOG_RATIO_LIMIT)
        total = (tokens.log_ratio.detach() + weights).sum(-1, keepdim=True)
        log_w = total.clamp(LOG_SMALLEST, LOG_RATIO_LIMIT)
        up = tokens.advantages >= 0
        k = log_w.new_full(up.shape, self.k_pos).where(up, self.k_neg)
        decay = log_w.new_full(up.shape, self.lambda_pos).where(up, self.lambda_neg)
        return (decay + k * log_w - decay * log_w.exp()).exp()
