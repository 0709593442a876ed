"""Importance ratio between the current policy and the one the ratio is taken against.

token                 ρ[i,t] = exp(ℓ − ℓ_old)                    PPO, GRPO
sequence_mean         s_i    = exp((1/n_i) Σ_t m (ℓ − ℓ_old))    GSPO, arXiv 2507.18071 eq. 7: the geometric mean
sequence_mean_token   sg(s_i) · exp(ℓ − sg(ℓ))                   GSPO-token, same paper §4.3; verl `gspo`
sequence_product      ρ_i    = exp(Σ_t m (ℓ − ℓ_old))            RLOO, arXiv 2402.14740: of whole answers

GSPO-token has the value of s_i, and each token's gradient is its own. Under `row_mean` that makes no difference unless
tokens of a row differ in advantage or rollout weight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

RatioLevel = Literal["token", "sequence_mean", "sequence_mean_token", "sequence_product"]

LOG_RATIO_LIMIT = 20.0
"""exp overflows float32 beyond 88; training has gone wrong long before a ratio of exp(20)."""


def token_log_ratio(policy_logprobs: Tensor, old_logprobs: Tensor | None) -> Tensor:
    """[B, T] policy − old, clamped to ±20 (no gradient outside).

    Without `old_logprobs` the current ones are taken as constants: the ratio is 1, its gradient that of the log-prob.
    """
    old = policy_logprobs.detach() if old_logprobs is None else old_logprobs
    return (policy_logprobs - old).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def importance_ratio(log_ratio: Tensor, loss_mask: Tensor, level: RatioLevel) -> Tensor:
    """The ratio at a level, [B, T]; a ratio of a whole row stands on each of its tokens; 1 where masked.

    Args:
        log_ratio: [B, T] token log-ratios, 0 where masked.
        loss_mask: [B, T] bool.
        level: what the ratio is taken over.
    """
    if level == "token":
        return log_ratio.exp()
    total = log_ratio.sum(-1, keepdim=True)
    if level != "sequence_product":
        total = total / loss_mask.sum(-1, keepdim=True).clamp(min=1)
    row = total.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    if level == "sequence_mean_token":
        row = row.detach() * (log_ratio - log_ratio.detach()).exp()
    return row.expand_as(log_ratio).where(loss_mask, 1.0)
