"""GRPO: clipped surrogate, mean over rollouts of their token means.

loss = (1/R) Σ_i (1/n_i) Σ_t [ −min(ρ A, clamp(ρ, 1 − clip_low, 1 + clip_high) A) + kl_coef · KL ]

DeepSeekMath, arXiv 2402.03300 eq. 3; TRL 1.16 `loss_type="grpo"`. Every rollout weighs the same, so tokens of short
ones weigh more: right answers are pushed to be short, wrong ones punished less the longer they are (Dr. GRPO,
arXiv 2503.20783). The paper's own KL term: `kl_coef: 0.04, kl_bias_correction: false`.
"""

from __future__ import annotations

from rollbook.components.losses.aggregate import Aggregation
from rollbook.components.losses.base import Loss
from rollbook.components.losses.clip import Clipping


class Grpo(Clipping, Loss):
    """Mean over rollouts of token means."""

    aggregation: Aggregation = "row_mean"
