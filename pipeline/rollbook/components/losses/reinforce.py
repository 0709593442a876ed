"""REINFORCE with an importance weight: the off-policy policy gradient, its ratio capped from above.

loss = (1/N) Σ_i Σ_t [ −sg(min(ρ, cap)) A ℓ + kl_coef · KL ]

arXiv 2402.14740 for language models; verl `bypass_mode` with `loss_type: reinforce`, where ρ is taken against the
engine that sampled (`old_logprobs: sampling`) at token or sequence level and `cap` is `rollout_is_threshold`. Unlike
GRPO nothing is clipped away: a capped token keeps its gradient. Unlike CISPO there is no lower bound, and no cap
unless it is set.
"""

from __future__ import annotations

from pydantic import PositiveFloat

from rollbook.components.losses.base import Loss, PolicyTerm, Tokens


class Reinforce(Loss):
    """Policy gradient with the ratio as weight.

    Attributes:
        cap: largest weight; None: as large as the ratio is.
    """

    cap: PositiveFloat | None = None

    def policy_term(self, tokens: Tokens) -> PolicyTerm:
        """See the top of the file."""
        ratio, advantages = tokens.ratio.detach(), tokens.advantages
        capped = ratio if self.cap is None else ratio.clamp(max=self.cap)
        return PolicyTerm(
            loss=-capped * advantages * tokens.policy_logprobs,
            clipped_low=ratio.new_zeros(ratio.shape).bool(),
            clipped_high=(ratio > capped) & (advantages > 0),
        )
