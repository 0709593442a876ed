"""GSPO: one ratio per rollout, the geometric mean of its tokens' ratios, in the clipped surrogate.

loss = (1/R) Σ_i (1/n_i) Σ_t [ −min(s A, clamp(s, 1 − clip_low, 1 + clip_high) A) + kl_coef · KL ]
s_i = exp((1/n_i) Σ_t Δ), Δ = ℓ − ℓ_old

arXiv 2507.18071; TRL 1.16 `importance_sampling_level="sequence"` with `loss_type="grpo"`; verl `gspo`. Unlike GRPO a
rollout is clipped as a whole. s moves far less than the ratio of a token, hence the paper's bounds of 3e-4 and 4e-4.
A KL term is weighed by the ratio of its own token: TRL 1.16 takes s, so that one token's KL pushes all others
(trl#6586).
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, PositiveFloat

from rollbook.components.losses.aggregate import Aggregation
from rollbook.components.losses.base import Loss
from rollbook.components.losses.clip import Clipping
from rollbook.components.losses.ratio import RatioLevel


class Gspo(Clipping, Loss):
    """Clipping of whole rollouts by the geometric mean of their ratios."""

    ratio_levels: ClassVar[tuple[RatioLevel, ...]] = (
        "sequence_mean",
        "sequence_mean_token",
        "sequence_product",
    )

    ratio: RatioLevel = "sequence_mean"
    aggregation: Aggregation = "row_mean"
    clip_low: Annotated[float, Field(gt=0, le=1)] = 3e-4
    clip_high: PositiveFloat = 4e-4
