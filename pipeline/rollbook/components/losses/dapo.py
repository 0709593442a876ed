"""DAPO: clipped surrogate with a higher upper bound, mean over all tokens of the optimizer step.

loss = (1/N) Σ_i Σ_t [ −min(ρ A, clamp(ρ, 1 − clip_low, 1 + clip_high) A) + kl_coef · KL ]

arXiv 2503.14476 eq. 8–9; TRL 1.16 `loss_type="dapo"`, verl `token-mean`. Unlike GRPO every token weighs the same,
whatever the length of its rollout, and clip_high is 0.28, so that unlikely tokens can gain more (clip-higher).
The paper's dynamic sampling and overlong reward are not part of the loss.
"""

from __future__ import annotations

from pydantic import PositiveFloat

from rollbook.components.losses.aggregate import Aggregation
from rollbook.components.losses.base import Loss
from rollbook.components.losses.clip import Clipping


class Dapo(Clipping, Loss):
    """Mean over tokens."""

    aggregation: Aggregation = "token_mean"
    clip_high: PositiveFloat = 0.28
