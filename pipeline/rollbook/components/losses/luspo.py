"""LUSPO: GSPO without its length bias, each rollout's term times its length.

loss = (1/R) Σ_i Σ_t [ −min(s A, clamp(s, 1 − clip_low, 1 + clip_high) A) + kl_coef · KL ]
s_i = exp((1/n_i) Σ_t Δ), Δ = ℓ − ℓ_old

arXiv 2602.05261; TRL 1.16 `loss_type="luspo"`, which needs `importance_sampling_level="sequence"` for it. Unlike GRPO
the ratio is that of a rollout and a token weighs the same in short rollouts and long ones. The loss grows with the
length of rollouts: a learning rate tuned for GSPO is too high by about that factor.
"""

from __future__ import annotations

from rollbook.components.losses.aggregate import Aggregation
from rollbook.components.losses.base import Loss
from rollbook.components.losses.clip import Clipping
from rollbook.components.losses.ratio import RatioLevel


class Luspo(Clipping, Loss):
    """Ratio of rollouts, sum over tokens, mean over rollouts."""

    ratio: RatioLevel = "sequence_mean"
    aggregation: Aggregation = "row_sum"
