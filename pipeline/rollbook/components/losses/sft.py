"""SFT: log-likelihood of chosen answers, as in supervised fine-tuning.

loss = (1/N) Σ_i Σ_t [ −A ℓ + kl_coef · KL ]

Unlike GRPO only answers that estimator `best` chose are trained on, with A = 1, and nothing is pushed down: there is no
baseline, ratio or clip, and it does not matter who wrote an answer. One such update per iteration is expert iteration:
STaR, arXiv 2203.14465; RAFT, arXiv 2304.06767; RFT, arXiv 2308.01825; ReST-EM, arXiv 2312.06585. N are the trained-on
tokens of the step, so that long answers weigh more; `aggregation: row_mean` weighs answers alike.
"""

from __future__ import annotations

from typing import ClassVar

from rollbook.components.losses.base import Loss, PolicyTerm, Tokens
from rollbook.components.losses.ratio import RatioLevel
from rollbook.components.signals import Signal


class Sft(Loss):
    """Imitation of chosen answers."""

    takes: ClassVar[tuple[Signal, ...]] = ("choices",)
    corrects_rollouts: ClassVar[bool] = False
    uses_ratio: ClassVar[bool] = False
    ratio_levels: ClassVar[tuple[RatioLevel, ...]] = ("token",)
    unused_settings: ClassVar[tuple[str, ...]] = ("off_policy_threshold",)

    def policy_term(self, tokens: Tokens) -> PolicyTerm:
        """See the top of the file."""
        nowhere = tokens.loss_mask.new_zeros(tokens.loss_mask.shape)
        return PolicyTerm(-tokens.advantages * tokens.policy_logprobs, nowhere, nowhere)
