"""From losses of tokens to one number. Denominators belong to the whole optimizer step: micro-batches are summed.

row_mean         (1/R) Σ_i (1/n_i) Σ_t L     GRPO, arXiv 2402.03300 eq. 3
token_mean       (1/N) Σ_i Σ_t L             DAPO, arXiv 2503.14476 eq. 8
constant_length  (1/(R·L_max)) Σ_i Σ_t L     Dr. GRPO, arXiv 2503.20783 §3.2

R rows and N trained-on tokens of the step, n_i tokens of row i. A row without tokens counts in R (as in TRL).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def row_mean(per_token: Tensor, loss_mask: Tensor, window_rows: int) -> Tensor:
    """Mean over rows of their token means. `per_token` [B, T] is 0 where masked."""
    lengths = loss_mask.sum(-1).clamp(min=1)
    return (per_token.sum(-1) / lengths).sum() / window_rows


def token_mean(per_token: Tensor, window_tokens: int) -> Tensor:
    """Mean over all tokens of the step: long rows weigh more."""
    return per_token.sum() / max(window_tokens, 1)


def constant_length(per_token: Tensor, window_rows: int, length: int) -> Tensor:
    """Sum over tokens, mean over rows, divided by a constant length."""
    return per_token.sum() / (window_rows * length)
