"""DPPO: policy gradient without the tokens whose probability has moved too far in the direction of their advantage.

loss = (1/N) Σ_i Σ_t [ −sg(min(ρ, cap)) A ℓ · 1[within the trust region] + kl_coef · KL ]

With p = exp ℓ and q = exp ℓ_old a token is outside of it, by divergence, if
    tv   A > 0 and p − q > clip_high;  A ≤ 0 and q − p > clip_low
    kl   A > 0, p > q and d > clip_high;  A ≤ 0, p < q and d > clip_low;  d = q log(q/p) + (1 − q) log((1 − q)/(1 − p))

arXiv 2602.04879, binary approximation; verl `dppo_tv`, `dppo_kl`. Unlike GRPO the trust region is one of
probabilities: a rare token may grow hundredfold, a likely one may not lose a fifth. The authors take q from the
engine that sampled (`old_logprobs: sampling`) and the aggregation of Dr. GRPO; a low cap biases.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import PositiveFloat

from rollbook.components.losses.base import Bound, Loss, PolicyTerm, Tokens
from rollbook.components.losses.ratio import RatioLevel

if TYPE_CHECKING:
    from torch import Tensor

EPS = 1e-8
"""Added to probabilities of all other tokens, which may be 0; verl's."""
USUAL_KL = 0.05
"""Bounds that the authors use with `kl`."""


class Dppo(Loss):
    """Trust region in probabilities.

    Attributes:
        divergence: what the bounds are on: total variation, or KL in nats, of the token against all others.
        clip_low: how far a probability may fall where the advantage is not positive.
        clip_high: how far it may rise where it is. The authors use 0.15 with tv, 0.05 with kl.
        cap: largest weight.
    """

    ratio_levels: ClassVar[tuple[RatioLevel, ...]] = ("token",)

    divergence: Literal["tv", "kl"] = "tv"
    clip_low: PositiveFloat = 0.15
    clip_high: PositiveFloat = 0.15
    cap: PositiveFloat = 20.0

    def cautions(self) -> list[str]:
        """See `Model.cautions`."""
        found = super().cautions()
        if self.divergence == "kl" and max(self.clip_low, self.clip_high) > 2 * USUAL_KL:
            found.append(
                f"update_policy.loss: clip_low {self.clip_low:g} and clip_high {self.clip_high:g} are wide for "
                f"divergence kl; its authors use {USUAL_KL:g}"
            )
        return found

    def clipped_at(self, ratio: float, policy_logprob: float, advantage: float) -> Bound:
        """See `Loss.clipped_at`. The bounds are on probabilities, and none of the ratio alone."""
        old_logprob = policy_logprob - math.log(ratio)
        p, q = math.exp(policy_logprob), math.exp(old_logprob)
        divergence = abs(p - q)
        if self.divergence == "kl":
            rest = math.log((max(1 - q, 0.0) + EPS) / (max(1 - p, 0.0) + EPS))
            divergence = q * (old_logprob - policy_logprob) + (1 - q) * rest
        if advantage > 0:
            return "high" if p > q and divergence > self.clip_high else ""
        return "low" if p < q and divergence > self.clip_low else ""

    def policy_term(self, tokens: Tokens) -> PolicyTerm:
        """See the top of the file."""
        policy, log_ratio = tokens.policy_logprobs.detach(), tokens.log_ratio.detach()
        old, up = policy - log_ratio, tokens.advantages > 0
        moved = policy.exp() - old.exp()
        divergence = moved.abs() if self.divergence == "tv" else _binary_kl(old, policy)
        too_high = up & (moved > 0) & (divergence > self.clip_high)
        too_low = ~up & (moved < 0) & (divergence > self.clip_low)
        gradient = -tokens.ratio.detach().clamp(max=self.cap) * tokens.advantages
        return PolicyTerm(
            loss=(gradient * tokens.policy_logprobs).where(~(too_high | too_low), 0.0),
            clipped_low=too_low,
            clipped_high=too_high,
        )


def _binary_kl(old: Tensor, policy: Tensor) -> Tensor:
    """KL of "this token or another" under the old policy to the same under the current one, nats."""
    q, others, others_now = old.exp(), 1 - old.exp(), 1 - policy.exp()
    rest = ((others.clamp(min=0) + EPS) / (others_now.clamp(min=0) + EPS)).log()
    return q * (old - policy) + others * rest
