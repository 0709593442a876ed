"""Dr. GRPO: clipped surrogate, sum over tokens divided by a constant length.

loss = (1/(R · L_max)) Σ_i Σ_t [ −min(ρ A, clamp(ρ, 1 − clip_low, 1 + clip_high) A) + kl_coef · KL ]

arXiv 2503.20783 §3.2; TRL 1.16 `loss_type="dr_grpo"`. L_max is the generation limit (`max_completion_tokens`), so
neither the length of a rollout nor that of its neighbours changes a token's weight. The paper also drops the division
by the group's deviation: set `compute_advantages.estimator: {name: group, scale: none}`.
"""

from __future__ import annotations

from rollbook.components.losses.aggregate import Aggregation
from rollbook.components.losses.base import Loss
from rollbook.components.losses.clip import Clipping


class DrGrpo(Clipping, Loss):
    """Sum over tokens per rollout and constant length."""

    aggregation: Aggregation = "constant_length"
