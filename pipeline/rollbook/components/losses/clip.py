"""The clipped surrogate of PPO with an upper and a lower bound of its own, and optionally a cap on the ratio.

L = −min(ρ' A, clamp(ρ, 1 − clip_low, 1 + clip_high) A),  ρ' = min(ρ, δ) if δ is set, else ρ

PPO, arXiv 1707.06347 eq. 7; clip_high > clip_low: DAPO, arXiv 2503.14476 §3.1; δ: INTELLECT-2, arXiv 2505.07291 §3.4.
Without δ a token with A < 0 and a large ratio is not bounded. Dual clip (arXiv 1912.09729; verl `clip_ratio_c`, 3.0
and always on) is the same thing: for A < 0 it is min(max(−ρA, −clamp(ρ)A), −cA), which for c = δ ≥ 1 + clip_high is L
in value and gradient.
"""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field, PositiveFloat

from rollbook.components.losses.base import PolicyTerm, Tokens
from rollbook.core.component import Model


class Clipping(Model):
    """The policy term of losses that clip, and its bounds.

    Attributes:
        clip_low: the ratio is not followed below 1 − clip_low where the advantage is negative.
        clip_high: nor above 1 + clip_high where it is positive.
        delta: cap on the ratio where the advantage is negative. Below 1 + clip_high it caps positive ones as well, as
            in TRL; `check` warns of that.
    """

    clip_low: Annotated[float, Field(gt=0, le=1)] = 0.2
    clip_high: PositiveFloat = 0.2
    delta: PositiveFloat | None = None

    def cautions(self) -> list[str]:
        """See `Model.cautions`."""
        found = super().cautions()
        if self.delta is not None and self.delta < 1 + self.clip_high:
            found.append(
                f"update_policy.loss: delta {self.delta:g} is below 1 + clip_high = {1 + self.clip_high:g}, "
                "so it caps the ratio of positive advantages too"
            )
        return found

    def ratio_bounds(self) -> tuple[float, float]:
        """See `Loss.ratio_bounds`. `delta` caps the ratio first: below a bound it decides for every ratio."""
        low, high = 1 - self.clip_low, 1 + self.clip_high
        cap = math.inf if self.delta is None else self.delta
        return (math.inf if cap < low else low), (math.inf if cap <= high else high)

    def policy_term(self, tokens: Tokens) -> PolicyTerm:
        """The clipped surrogate of each token. Bounds are strict: a ratio exactly on one is not clipped."""
        advantages = tokens.advantages
        low, high = 1 - self.clip_low, 1 + self.clip_high
        free = tokens.ratio if self.delta is None else tokens.ratio.clamp(max=self.delta)
        surrogate = (free * advantages).minimum(tokens.ratio.clamp(low, high) * advantages)
        return PolicyTerm(
            loss=-surrogate,
            clipped_low=(free < low) & (advantages < 0),
            clipped_high=(free > high) & (advantages > 0),
        )
