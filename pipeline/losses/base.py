"""The interface of a loss: a pure function of one record of log-probs to another.

`Loss` is the frame that all policy losses share: importance ratio, policy term, KL term, aggregation, in TRL's
order. A loss of its own gives the policy term and the aggregation, or replaces `__call__`. Loss files use tensor
methods only and never import torch at run time, so that settings can be checked where torch is not installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from pydantic import NonNegativeFloat, model_validator

from pipeline.component import Component
from pipeline.errors import TrainingError
from pipeline.losses.kl import STRAIGHT_THROUGH, KlEstimator, kl_estimate
from pipeline.losses.ratio import RatioLevel, importance_ratio, token_log_ratio

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class LossInputs:
    """One micro-batch. `B` completions padded to `T` tokens, natural logs, all after temperature.

    Values at masked positions are arbitrary (even NaN) and must not matter.

    Attributes:
        policy_logprobs: [B, T] of the current policy; carries the gradient.
        advantages: [B, 1] or [B, T], constant.
        loss_mask: [B, T] bool, True = trained on.
        window_rows: completions of the whole optimizer step (all micro-batches).
        window_tokens: trained-on tokens of the whole optimizer step.
        max_completion_tokens: the generation limit, the constant denominator of Dr. GRPO.
        old_logprobs: [B, T] of the policy before the update (constant); None: the current ones without gradient.
        ref_logprobs: [B, T] of the frozen reference (constant), or None.
        sampling_logprobs: [B, T] as the engine reported them (constant), or None.
        entropies: [B, T] of the current policy, nats; may carry gradient; or None.
    """

    policy_logprobs: Tensor
    advantages: Tensor
    loss_mask: Tensor
    window_rows: int
    window_tokens: int
    max_completion_tokens: int
    old_logprobs: Tensor | None = None
    ref_logprobs: Tensor | None = None
    sampling_logprobs: Tensor | None = None
    entropies: Tensor | None = None

    def without_masked(self) -> LossInputs:
        """The same with 0 at masked positions: NaN times 0 is NaN, also in a gradient, so values are replaced."""
        per_token = (
            "policy_logprobs",
            "old_logprobs",
            "ref_logprobs",
            "sampling_logprobs",
            "entropies",
        )
        present = {name: value for name in per_token if (value := getattr(self, name)) is not None}
        present["advantages"] = self.advantages.expand_as(self.policy_logprobs)
        return replace(self, **{name: v.where(self.loss_mask, 0.0) for name, v in present.items()})


@dataclass(frozen=True)
class LossOutputs:
    """What a loss returns for a micro-batch.

    Attributes:
        loss: scalar with gradient; micro-batches of one optimizer step are summed, never averaged.
        per_token: [B, T] detached contribution of each token before aggregation, 0 where masked.
        ratio: [B, T] detached importance ratio, 1 where masked.
        clipped_low, clipped_high: [B, T] bool, tokens held by the lower or upper bound.
        kl: [B, T] detached KL term as used, 0 where masked, or None.
        row_metrics: [B] further detached numbers of each row, by the name of the metric that averages them.
    """

    loss: Tensor
    per_token: Tensor
    ratio: Tensor
    clipped_low: Tensor
    clipped_high: Tensor
    kl: Tensor | None = None
    row_metrics: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Tokens:
    """What a policy term is made of, all [B, T]; log-probs and advantages are 0, ratios 1 where masked.

    Attributes:
        policy_logprobs: of the current policy; carries the gradient.
        log_ratio: policy − old, token by token, clamped to ±20; carries the gradient.
        ratio: importance ratio at the loss's level; carries the gradient.
        advantages: constant.
        loss_mask: bool, True = trained on.
    """

    policy_logprobs: Tensor
    log_ratio: Tensor
    ratio: Tensor
    advantages: Tensor
    loss_mask: Tensor


@dataclass(frozen=True)
class PolicyTerm:
    """The policy term of each token, [B, T], before masks and aggregation.

    Attributes:
        loss: to be minimised; carries the gradient.
        clipped_low, clipped_high: bool, where the lower or upper bound holds.
        row_metrics: see `LossOutputs`.
    """

    loss: Tensor
    clipped_low: Tensor
    clipped_high: Tensor
    row_metrics: Mapping[str, Tensor] = field(default_factory=dict)


class Loss(Component):
    """A policy loss. Pure: no model, optimizer, logging or global state.

    Attributes:
        ratio: what the importance ratio is taken over (`pipeline/losses/ratio.py`).
        kl_coef: weight of the KL term against the reference; with 0 no reference is loaded.
        kl_estimator: how the KL is estimated (`pipeline/losses/kl.py`).
        kl_bias_correction: multiply the estimate by the token ratio, with gradient (DeepSeek-V3.2, eq. 7), so that
            its gradient is that of the reverse KL. `false` is DeepSeekMath's and verl's form.
    """

    kind: ClassVar[str] = "losses"
    ratio: RatioLevel = "token"
    kl_coef: NonNegativeFloat = 0.0
    kl_estimator: KlEstimator = "k3"
    kl_bias_correction: bool = True

    @model_validator(mode="after")
    def _kl_has_the_right_gradient(self) -> Loss:
        if self.kl_coef and self.kl_bias_correction and self.kl_estimator in STRAIGHT_THROUGH:
            raise ValueError(
                f"kl_estimator {self.kl_estimator} brings the right gradient itself; set kl_bias_correction: false"
            )
        if self.kl_coef and not self.kl_bias_correction and self.kl_estimator == "k1":
            raise ValueError(
                "kl_estimator k1 without kl_bias_correction has no gradient in expectation; use k3, k2 or k1+"
            )
        return self

    @property
    def needs_reference(self) -> bool:
        """Whether log-probs of the reference policy go into the loss."""
        return self.kl_coef != 0

    @property
    def per_row(self) -> bool:
        """Whether ratio and clips have one value per row, so that metrics count rows and not tokens."""
        return self.ratio != "token"

    @property
    def silent_at_zero_advantage(self) -> bool:
        """Whether a row whose advantages are all 0 has a gradient of exactly 0, so that it need not be computed."""
        return self.kl_coef == 0

    def __call__(self, inputs: LossInputs) -> LossOutputs:
        """Ratio, policy term, KL term, aggregation.

        Raises:
            TrainingError: if the KL term is on and there are no reference log-probs.
        """
        inputs = inputs.without_masked()
        tokens, mask = self._tokens(inputs), inputs.loss_mask
        term = self.policy_term(tokens)
        kl = self._kl(inputs, tokens.log_ratio) if self.needs_reference else None
        per_token = term.loss if kl is None else term.loss + self.kl_coef * kl
        per_token = per_token.where(mask, 0.0)
        return LossOutputs(
            loss=self.aggregate(per_token, inputs),
            per_token=per_token.detach(),
            ratio=tokens.ratio.detach(),
            clipped_low=term.clipped_low & mask,
            clipped_high=term.clipped_high & mask,
            kl=None if kl is None else kl.detach(),
            row_metrics=term.row_metrics,
        )

    def policy_term(self, tokens: Tokens) -> PolicyTerm:
        """The loss of each token, before KL, masks and aggregation."""
        raise NotImplementedError

    def aggregate(self, per_token: Tensor, inputs: LossInputs) -> Tensor:
        """Sums [B, T] (0 where masked) to a scalar; denominators are those of the whole optimizer step."""
        raise NotImplementedError

    def _tokens(self, inputs: LossInputs) -> Tokens:
        log_ratio = token_log_ratio(inputs.policy_logprobs, inputs.old_logprobs)
        ratio = importance_ratio(log_ratio, inputs.loss_mask, self.ratio)
        return Tokens(inputs.policy_logprobs, log_ratio, ratio, inputs.advantages, inputs.loss_mask)

    def _kl(self, inputs: LossInputs, log_ratio: Tensor) -> Tensor:
        if inputs.ref_logprobs is None:
            raise TrainingError(
                f"the loss has kl_coef {self.kl_coef} and got no log-probs of the reference policy"
            )
        kl = kl_estimate(self.kl_estimator, inputs.policy_logprobs, inputs.ref_logprobs)
        # Always the token ratio: with a sequence ratio each token's KL would push all other tokens (trl#6586).
        return kl * log_ratio.exp() if self.kl_bias_correction else kl
