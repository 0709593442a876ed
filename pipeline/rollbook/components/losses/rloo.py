"""RLOO: clipped surrogate with the ratio of probabilities of whole completions.

loss = (1/R) Σ_i [ −min(ρ_i A, clamp(ρ_i, 1 − clip_low, 1 + clip_high) A) ]
ρ_i = exp(Σ_t Δ) = P_new(completion) / P_old(completion), Δ = ℓ − ℓ_old

Back to Basics, arXiv 2402.14740; TRL 1.16 `RLOOTrainer`. Unlike GRPO a completion is one action: its ratio is the
product of its tokens' ratios, not divided by its length, and leaves the clip range the sooner the longer it is.
Advantages are those of `compute_advantages.estimator: leave_one_out`, and its KL is part of the reward
(`compute_advantages.kl_coef`).
"""

from __future__ import annotations

from typing import ClassVar

from rollbook.components.losses.aggregate import Aggregation
from rollbook.components.losses.base import Loss
from rollbook.components.losses.clip import Clipping
from rollbook.components.losses.ratio import RatioLevel


class Rloo(Clipping, Loss):
    """Clipping of whole rollouts by the product of their ratios."""

    ratio_levels: ClassVar[tuple[RatioLevel, ...]] = ("sequence_mean", "sequence_product")

    ratio: RatioLevel = "sequence_product"
    aggregation: Aggregation = "row_mean"
