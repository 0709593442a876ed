"""DPO: the policy prefers the better of two answers to a prompt by more than the reference does.

loss = (1/P) Σ_pairs −log σ(β (h_c − h_r)) + sft_coef · (1/N_c) Σ_c Σ_t −ℓ
h_i = Σ_t (ℓ − ℓ_ref)

P pairs of the step, c chosen, r rejected; N_c trained-on tokens of the chosen answers. Direct Preference Optimization,
arXiv 2305.18290 eq. 7; TRL 1.16 `DPOTrainer`. Unlike GRPO there is no ratio to the policy before the update and no
advantage: β holds the policy near the reference, and all tokens of a pair are pushed alike however long its answers
are, so long ones move h more. Both log-probs are those of the sampled distribution, after temperature. Variants, with
x = β (h_c − h_r), n tokens of an answer, s = label_smoothing:

sigmoid       −log σ(x)
sigmoid_norm  the same with h / n, so that length does not count
hinge         max(0, 1 − x), SLiC, arXiv 2305.10425
ipo           (h_c/n_c − h_r/n_r − 1/(2β))², arXiv 2310.12036 eq. 17, by token as its authors have it
robust        (s log σ(−x) − (1 − s) log σ(x)) / (1 − 2s), where a share s of preferences is wrong, arXiv 2403.00409
exo_pair      σ(x) (log σ(x) − log(1 − s)) + σ(−x) (log σ(−x) − log s), arXiv 2402.00856 eq. 16
apo_zero      1 − σ(β h_c) + σ(β h_r), arXiv 2408.06266 eq. 7: the chosen goes up, the rejected down, each by itself
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from rollbook.components.losses.base import Loss, LossInputs, LossOutputs
from rollbook.components.losses.ratio import RatioLevel
from rollbook.components.signals import Signal
from rollbook.core.errors import TrainingError

if TYPE_CHECKING:
    from torch import Tensor

SMOOTHED = ("robust", "exo_pair")


@dataclass(frozen=True)
class _Answers:
    """One side of each pair.

    Attributes:
        policy, ref: [P] weighted sums of log-probs over trained-on tokens; `policy` carries the gradient.
        tokens: [P] trained-on tokens, at least 1.
    """

    policy: Tensor
    ref: Tensor
    tokens: Tensor

    @property
    def gain(self) -> Tensor:
        """h: what the policy gives the answer beyond the reference, nats."""
        return self.policy - self.ref

    @property
    def gain_per_token(self) -> Tensor:
        return self.gain / self.tokens


class Dpo(Loss):
    """A loss of pairs of answers.

    Attributes:
        variant: how a pair's two gains become a loss.
        beta: how hard the policy is held near the reference; of ipo, its regularisation τ.
        label_smoothing: share of preferences that are taken to be wrong, for robust and exo_pair.
        ld_alpha: weight of tokens beyond the length of the shorter answer (LD-DPO, arXiv 2409.06411); null = 1.
        sft_coef: weight of the log-likelihood of chosen answers, a token mean over the step (RPO, arXiv 2404.19733).
    """

    takes: ClassVar[tuple[Signal, ...]] = ("pairs",)
    corrects_rollouts: ClassVar[bool] = False
    uses_ratio: ClassVar[bool] = False
    ratio_levels: ClassVar[tuple[RatioLevel, ...]] = ("token",)
    unused_settings: ClassVar[tuple[str, ...]] = (
        "ratio",
        "aggregation",
        "count_empty_rows",
        "kl_coef",
        "kl_estimator",
        "kl_bias_correction",
        "off_policy_threshold",
        "entropy_coef",
    )

    variant: Literal[
        "sigmoid", "sigmoid_norm", "hinge", "ipo", "robust", "exo_pair", "apo_zero"
    ] = "sigmoid"
    beta: PositiveFloat = 0.1
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    ld_alpha: Annotated[float, Field(ge=0, le=1)] | None = None
    sft_coef: NonNegativeFloat = 0.0

    @model_validator(mode="after")
    def _smoothing_is_used(self) -> Dpo:
        if self.label_smoothing and self.variant not in SMOOTHED:
            raise ValueError(
                f"variant {self.variant} has no label_smoothing; leave it out, or take robust or exo_pair"
            )
        if self.variant == "exo_pair" and not self.label_smoothing:
            raise ValueError("variant exo_pair needs label_smoothing above 0; the paper's is 0.001")
        return self

    @property
    def needs_reference(self) -> bool:
        """See `Loss.needs_reference`."""
        return True

    def __call__(self, inputs: LossInputs) -> LossOutputs:
        """The loss of the pairs in a micro-batch, over all pairs of the optimizer step.

        Raises:
            TrainingError: if there are no pairs, or no log-probs of the reference policy.
        """
        pairs = inputs.pairs
        if pairs is None or inputs.ref_logprobs is None:
            missing = "pairs" if pairs is None else "log-probs of the reference policy"
            raise TrainingError(f"loss dpo got no {missing}")
        inputs = inputs.without_masked()
        chosen, rejected = self._sides(inputs, pairs)
        of_pair = self._of_pair(chosen, rejected)
        loss = of_pair.sum() / (inputs.window_pairs or 1)
        if self.sft_coef:
            likelihood = inputs.policy_logprobs[pairs[:, 0]].sum()
            loss = loss - self.sft_coef * likelihood / (inputs.window_chosen_tokens or 1)
        mask = inputs.loss_mask
        nowhere = mask.new_zeros(mask.shape)
        return LossOutputs(
            loss=loss,
            per_token=self._per_token(of_pair.detach(), inputs, pairs),
            ratio=self._tokens(inputs).ratio.detach(),
            clipped_low=nowhere,
            clipped_high=nowhere,
            policy_loss=loss.detach(),
            pair_metrics=self._metrics(chosen, rejected),
        )

    def _sides(self, inputs: LossInputs, pairs: Tensor) -> tuple[_Answers, _Answers]:
        assert inputs.ref_logprobs is not None
        mask = inputs.loss_mask
        tokens, place = mask.sum(-1), mask.cumsum(-1)
        shorter = tokens[pairs].amin(-1, keepdim=True)
        sides = []
        for rows in pairs.unbind(-1):
            policy, ref = inputs.policy_logprobs[rows], inputs.ref_logprobs[rows]
            if self.ld_alpha is not None:
                shared = place[rows] <= shorter
                policy = policy.where(shared, self.ld_alpha * policy)
                ref = ref.where(shared, self.ld_alpha * ref)
            sides.append(_Answers(policy.sum(-1), ref.sum(-1), tokens[rows].clamp(min=1)))
        return sides[0], sides[1]

    def _of_pair(self, chosen: _Answers, rejected: _Answers) -> Tensor:
        """[P] loss of each pair; see the top of the file."""
        if self.variant == "apo_zero":
            up, down = self.beta * chosen.gain, self.beta * rejected.gain
            return (-up).sigmoid() + down.sigmoid()
        if self.variant == "ipo":
            lead = chosen.gain_per_token - rejected.gain_per_token
            return (lead - 1 / (2 * self.beta)).square()
        if self.variant == "sigmoid_norm":
            lead = chosen.gain_per_token - rejected.gain_per_token
            return -_log_sigmoid(self.beta * lead)
        x, smoothing = self.beta * (chosen.gain - rejected.gain), self.label_smoothing
        if self.variant == "hinge":
            return (1 - x).clamp(min=0)
        if self.variant == "robust":
            right, wrong = _log_sigmoid(x), _log_sigmoid(-x)
            return (smoothing * wrong - (1 - smoothing) * right) / (1 - 2 * smoothing)
        if self.variant == "exo_pair":
            right = _log_sigmoid(x) - math.log1p(-smoothing)
            wrong = _log_sigmoid(-x) - math.log(smoothing)
            return x.sigmoid() * right + (-x).sigmoid() * wrong
        return -_log_sigmoid(x)

    def _per_token(self, of_pair: Tensor, inputs: LossInputs, pairs: Tensor) -> Tensor:
        """[B, T] the loss of a pair dealt to its two answers alike, and evenly to their tokens; with the SFT term."""
        mask = inputs.loss_mask
        tokens = mask.sum(-1, keepdim=True).clamp(min=1)
        of_row = of_pair.new_zeros(len(mask))
        for rows in pairs.unbind(-1):
            of_row = of_row.index_add(0, rows, of_pair / 2)
        found = of_row[:, None] / tokens
        if self.sft_coef:
            times = of_row.new_zeros(len(mask)).index_add(
                0, pairs[:, 0], of_pair.new_ones(len(pairs))
            )
            share = self.sft_coef * (inputs.window_pairs or 1) / (inputs.window_chosen_tokens or 1)
            found = found - share * times[:, None] * inputs.policy_logprobs.detach()
        return found.where(mask, 0.0)

    def _metrics(self, chosen: _Answers, rejected: _Answers) -> dict[str, Tensor]:
        """By TRL's names. Those of reward functions are `rewards/<name>/mean`, so no two are the same."""
        up, down = (self.beta * side.gain.detach() for side in (chosen, rejected))
        return {
            "rewards/chosen": up,
            "rewards/rejected": down,
            "rewards/margins": up - down,
            "rewards/accuracies": (up > down).to(up.dtype),
            "logps/chosen": chosen.policy.detach(),
            "logps/rejected": rejected.policy.detach(),
        }


def _log_sigmoid(x: Tensor) -> Tensor:
    """log σ(x) without overflow at either end."""
    return -(-x).logaddexp(x.new_zeros(x.shape))
