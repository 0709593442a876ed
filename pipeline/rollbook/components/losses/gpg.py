"""GPG: the plain policy gradient, without ratio, clipping or cap.

loss = (1/N) Σ_i Σ_t [ −A ℓ + kl_coef · KL ]

arXiv 2504.02546; verl `gpg`. Unlike GRPO it takes every step as on-policy: with several optimizer steps on the same
rollouts its gradient is off by what the policy has moved. The value of the loss is not −mean A but has ℓ in it.
"""

from __future__ import annotations

from typing import ClassVar

from rollbook.components.losses.base import Loss, PolicyTerm, Tokens
from rollbook.components.losses.ratio import RatioLevel


class Gpg(Loss):
    """Plain policy gradient."""

    uses_ratio: ClassVar[bool] = False
    ratio_levels: ClassVar[tuple[RatioLevel, ...]] = ("token",)

    def policy_term(self, tokens: Tokens) -> PolicyTerm:
        """See the top of the file."""
        nowhere = tokens.loss_mask.new_zeros(tokens.loss_mask.shape)
        return PolicyTerm(-tokens.advantages * tokens.policy_logprobs, nowhere, nowhere)
