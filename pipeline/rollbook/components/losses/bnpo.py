"""BNPO: clipped surrogate, mean over the tokens of each micro-batch.

loss = Σ_b (R_b/R) (1/N_b) Σ_i Σ_t [ −min(ρ A, clamp(ρ, 1 − clip_low, 1 + clip_high) A) + kl_coef · KL ]

TRL 1.16 `loss_type="bnpo"`; the surrogate is PPO's, arXiv 1707.06347. b is a micro-batch of R_b rows and N_b tokens.
Unlike GRPO every token of a micro-batch weighs the same; unlike DAPO tokens of different micro-batches do not, so
memory settings change the result. It is there to reproduce TRL's numbers: `dapo` is the mean over tokens that does
not move.
"""

from __future__ import annotations

from rollbook.components.losses.aggregate import Aggregation
from rollbook.components.losses.base import Loss
from rollbook.components.losses.clip import Clipping


class Bnpo(Clipping, Loss):
    """Mean over micro-batches of token means."""

    aggregation: Aggregation = "micro_batch_token_mean"
