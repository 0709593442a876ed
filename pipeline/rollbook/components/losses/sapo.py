"""SAPO: a soft gate on the ratio instead of a clip.

loss = (1/R) Σ_i (1/n_i) Σ_t [ −(4/τ) sigmoid(τ (ρ − 1)) A + kl_coef · KL ]
τ = tau_pos if A > 0, else tau_neg

arXiv 2511.20347; TRL 1.16 `loss_type="sapo"`; verl `sapo`. Unlike GRPO the gradient fades with the distance of the
ratio from 1 and never drops to 0; tau_neg > tau_pos fades tokens with a negative advantage sooner. At ρ = 1 the
gradient is that of GRPO for any τ, and the value is −2A/τ.
"""

from __future__ import annotations

from pydantic import PositiveFloat

from rollbook.components.losses.aggregate import Aggregation
from rollbook.components.losses.base import Loss, PolicyTerm, Tokens


class Sapo(Loss):
    """Sigmoid gate on the ratio.

    Attributes:
        tau_pos, tau_neg: how sharply the gate closes for positive and for other advantages.
    """

    aggregation: Aggregation = "row_mean"
    tau_pos: PositiveFloat = 1.0
    tau_neg: PositiveFloat = 1.05

    def policy_term(self, tokens: Tokens) -> PolicyTerm:
        """See the top of the file. Nothing is ever clipped."""
        advantages, ratio = tokens.advantages, tokens.ratio
        tau = ratio.new_full(ratio.shape, self.tau_pos).where(advantages > 0, self.tau_neg)
        gate = (tau * (ratio - 1)).sigmoid() * 4 / tau
        nowhere = tokens.loss_mask.new_zeros(tokens.loss_mask.shape)
        return PolicyTerm(-gate * advantages, nowhere, nowhere)
