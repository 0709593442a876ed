"""The interface of a loss: a pure function of one record of log-probs to another.

`Loss` is the frame that all policy losses share, in TRL's order: importance ratio, policy term, masks, rollout
correction, KL term, aggregation, entropy bonus. A loss of its own gives the policy term and its defaults. Loss files
use tensor methods only and never import torch at run time, so that settings can be checked without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal, Self, get_args

from pydantic import NonNegativeFloat, model_validator

from rollbook.components.coefficients import EntropyCoefficient, KlCoefficient, start_of
from rollbook.components.losses.aggregate import BY_LENGTH, Aggregation, aggregated
from rollbook.components.losses.kl import CORRECTABLE, KlEstimator, kl_estimate
from rollbook.components.losses.masks import on_policy
from rollbook.components.losses.ratio import RatioLevel, importance_ratio, token_log_ratio
from rollbook.components.signals import Signal
from rollbook.core.component import Component
from rollbook.core.errors import TrainingError

if TYPE_CHECKING:
    from torch import Tensor

Bound = Literal["low", "high", ""]
"""The bound that clips a token; empty for none."""


@dataclass(frozen=True)
class LossInputs:
    """One micro-batch. `B` completions padded to `T` tokens, natural logs, all after temperature.

    Values at masked positions are arbitrary (even NaN) and must not matter.

    Attributes:
        policy_logprobs: [B, T] of the current policy; carries the gradient.
        advantages: [B, 1] or [B, T], constant.
        loss_mask: [B, T] bool, True = trained on.
        window_rows: completions of the whole optimizer step (all micro-batches).
        window_tokens: trained-on tokens of the whole optimizer step; need not be whole (a share of a batch).
        max_completion_tokens: the generation limit, the constant denominator of Dr. GRPO.
        old_logprobs: [B, T] of the policy before the update (constant); None: the current ones without gradient.
        ref_logprobs: [B, T] of the frozen reference (constant), or None.
        sampling_logprobs: [B, T] as the engine reported them (constant; NaN = unknown), or None.
        entropies: [B, T] of the current policy, nats; carries gradient if there is an entropy bonus; or None.
        rollout_weights: [B, T] constant weights for tokens of an engine that differs from the trainer, or None.
        policy_mask: [B, T] bool, tokens whose policy term and entropy bonus count; KL and denominators do not notice.
            None: all.
        window_policy_tokens: trained-on tokens of the step within `policy_mask`; None: `window_tokens`.
        group_tokens: [B] trained-on tokens of each row's whole group, for the aggregation `group_mean`; or None.
        window_groups: groups of the step, likewise.
        pairs: [P, 2] rows of a chosen and a rejected completion, for losses of pairs; or None.
        window_pairs: pairs of the whole optimizer step, likewise.
        window_chosen_tokens: trained-on tokens of the chosen completions of these, each as often as it is chosen.
    """

    policy_logprobs: Tensor
    advantages: Tensor
    loss_mask: Tensor
    window_rows: float
    window_tokens: float
    max_completion_tokens: int
    old_logprobs: Tensor | None = None
    ref_logprobs: Tensor | None = None
    sampling_logprobs: Tensor | None = None
    entropies: Tensor | None = None
    rollout_weights: Tensor | None = None
    policy_mask: Tensor | None = None
    window_policy_tokens: float | None = None
    group_tokens: Tensor | None = None
    window_groups: float | None = None
    pairs: Tensor | None = None
    window_pairs: float | None = None
    window_chosen_tokens: float | None = None

    @property
    def bonus_mask(self) -> Tensor:
        """[B, T] tokens that an entropy bonus counts."""
        return self.loss_mask if self.policy_mask is None else self.loss_mask & self.policy_mask

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
        clean = {name: value.where(self.loss_mask, 0.0) for name, value in present.items()}
        if self.rollout_weights is not None:
            clean["rollout_weights"] = self.rollout_weights.where(self.loss_mask, 1.0)
        return replace(self, **clean)


@dataclass(frozen=True)
class LossOutputs:
    """What a loss returns for a micro-batch.

    Attributes:
        loss: scalar with gradient; micro-batches of one optimizer step are summed, never averaged.
        per_token: [B, T] detached contribution of each token before aggregation, 0 where masked.
        ratio: [B, T] detached importance ratio, 1 where masked.
        clipped_low, clipped_high: [B, T] bool, tokens held by the lower or upper bound.
        policy_loss: detached scalar before the entropy bonus.
        kl: [B, T] detached KL term as used, 0 where masked, or None.
        row_metrics: [B] further detached numbers of each row, by the name of the metric that averages them.
        pair_metrics: [P] the same of each pair; a loss of pairs has at least one.
    """

    loss: Tensor
    per_token: Tensor
    ratio: Tensor
    clipped_low: Tensor
    clipped_high: Tensor
    policy_loss: Tensor
    kl: Tensor | None = None
    row_metrics: Mapping[str, Tensor] = field(default_factory=dict)
    pair_metrics: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Tokens:
    """What a policy term is made of, all [B, T]; log-probs and advantages are 0, ratios 1 where masked.

    Attributes:
        policy_logprobs: of the current policy; carries the gradient.
        log_ratio: policy − old, token by token, clamped to ±20; carries the gradient.
        ratio: importance ratio at the loss's level; carries the gradient.
        advantages: constant.
        loss_mask: bool, True = trained on.
        policy_mask: bool, those of the trained-on tokens whose policy term counts.
        rollout_weights: constant, 1 where masked and where there is no rollout correction.
    """

    policy_logprobs: Tensor
    log_ratio: Tensor
    ratio: Tensor
    advantages: Tensor
    loss_mask: Tensor
    policy_mask: Tensor
    rollout_weights: Tensor


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
        ratio: what the importance ratio is taken over (`pipeline/rollbook/components/losses/ratio.py`).
        aggregation: how losses of tokens become one number (`pipeline/rollbook/components/losses/aggregate.py`).
        count_empty_rows: whether rows without trained-on tokens count in means over rows, as in TRL (verl: false).
        kl_coef: weight of the KL to the reference, fixed or following a target; with 0 no reference is loaded.
        kl_estimator: how the KL is estimated (`pipeline/rollbook/components/losses/kl.py`).
        kl_bias_correction: multiply the estimate by the token ratio, with gradient (DeepSeek-V3.2, arXiv 2512.02556
            eq. 7), so that the gradient of k3 (and of k1, in expectation) is that of the reverse KL. `false` is
            DeepSeekMath's and verl's form.
        off_policy_threshold: drop the policy term of rows with a negative advantage whose mean of sampling − policy
            log-prob is above this, nats (DeepSeek-V3.2, arXiv 2512.02556 §3.1; TRL `off_policy_mask_threshold`).
        entropy_coef: weight of the entropy bonus, a token mean whatever the aggregation; fixed or following a target.
    """

    kind: ClassVar[str] = "losses"
    takes: ClassVar[tuple[Signal, ...]] = ("advantages", "choices")
    """What of an estimator it has a meaning for."""
    unused_settings: ClassVar[tuple[str, ...]] = ()
    """Settings of the frame that it has no use for; they must stay at their defaults."""
    corrects_rollouts: ClassVar[bool] = True
    """Whether it matters that an engine differs from the trainer, so that `rollout_correction` has a meaning."""
    weighs_rollouts_itself: ClassVar[bool] = False
    """Whether the policy term has used `rollout_weights`, so that they are not multiplied in again."""
    needs_token_weights: ClassVar[bool] = False
    """Whether the policy term multiplies `rollout_weights` over a row, so that they must be weights of tokens."""
    pools_tokens: ClassVar[bool] = False
    """Whether the policy term is one number per row, made of the tokens in `policy_mask`: it stands on all tokens of
    the row, also on those outside."""
    uses_ratio: ClassVar[bool] = True
    """Whether the policy term looks at the ratio at all."""
    ratio_levels: ClassVar[tuple[RatioLevel, ...]] = get_args(RatioLevel)
    """Values of `ratio` that the policy term has a meaning for."""
    pools_rows: ClassVar[bool] = False
    """Whether the policy term of a token depends on other rows of the micro-batch: memory settings change the result,
    and rows whose advantage is 0 must be there."""
    clip_metrics: ClassVar[Mapping[str, str]] = {}
    """Names that TRL has for metrics of this loss, and the metric of `clip_ratio/` that each repeats."""

    ratio: RatioLevel = "token"
    aggregation: Aggregation = "token_mean"
    count_empty_rows: bool = True
    kl_coef: KlCoefficient = 0.0
    kl_estimator: KlEstimator = "k3"
    kl_bias_correction: bool = True
    off_policy_threshold: NonNegativeFloat | None = None
    entropy_coef: EntropyCoefficient = 0.0

    @model_validator(mode="after")
    def _ratio_has_a_meaning(self) -> Loss:
        if self.ratio not in self.ratio_levels:
            if not self.uses_ratio:
                raise ValueError("this loss has no importance ratio; leave `ratio` out")
            allowed = " or ".join(self.ratio_levels)
            raise ValueError(
                f"ratio {self.ratio} has no meaning in this loss; it must be {allowed}"
            )
        return self

    @model_validator(mode="after")
    def _settings_have_a_use(self) -> Loss:
        for name in self.unused_settings:
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"this loss has no use for `{name}`; leave it out")
        return self

    @model_validator(mode="after")
    def _kl_has_the_right_gradient(self) -> Loss:
        if self.kl_coef and self.kl_bias_correction and self.kl_estimator not in CORRECTABLE:
            raise ValueError(
                f"kl_bias_correction would spoil the gradient of kl_estimator {self.kl_estimator}; set it to false, "
                "or take k3"
            )
        if self.kl_coef and not self.kl_bias_correction and self.kl_estimator == "k1":
            raise ValueError(
                "kl_estimator k1 without kl_bias_correction has no gradient in expectation; use k3, k2 or k1+"
            )
        return self

    @property
    def has_kl(self) -> bool:
        """Whether it has a KL term."""
        return self.kl_coef != 0

    @property
    def needs_reference(self) -> bool:
        """Whether log-probs of the reference policy go into the loss."""
        return self.has_kl

    @property
    def needs_pairs(self) -> bool:
        """Whether it compares two completions, so that groups must stay together in a micro-batch."""
        return "pairs" in self.takes

    @property
    def compares_with_old(self) -> bool:
        """Whether log-probs of the policy before the update go into the loss."""
        return self.uses_ratio or (self.has_kl and self.kl_bias_correction)

    @property
    def has_entropy_bonus(self) -> bool:
        """Whether entropies need a gradient."""
        return self.entropy_coef != 0

    @property
    def depends_on_split(self) -> bool:
        """Whether the cut into micro-batches changes the gradient."""
        return self.pools_rows or self.aggregation == "micro_batch_token_mean"

    @property
    def per_row(self) -> bool:
        """Whether ratio and clips have one value per row, so that metrics count rows and not tokens."""
        return self.ratio != "token"

    @property
    def silent_at_zero_advantage(self) -> bool:
        """Whether a row whose advantages are all 0 has a gradient of exactly 0, so that it need not be computed."""
        return not (self.needs_reference or self.has_entropy_bonus or self.depends_on_split)

    def cautions(self) -> list[str]:
        """See `Model.cautions`."""
        found = super().cautions()
        if self.depends_on_split:
            found.append(
                "update_policy.loss: the gradient depends on how a step is cut into micro-batches, "
                "so update_policy.micro_batch_tokens changes the result"
            )
        if (self.per_row or self.pools_tokens) and self.aggregation in BY_LENGTH:
            found.append(
                f"update_policy.loss: one term per rollout under aggregation {self.aggregation} weighs rollouts "
                "by their length; use row_mean"
            )
        return found

    def with_coefficients(self, kl_coef: float, entropy_coef: float) -> Self:
        """The same loss with coefficients as they stand now."""
        return self.model_copy(update={"kl_coef": kl_coef, "entropy_coef": entropy_coef})

    def ratio_bounds(self) -> tuple[float, float] | None:
        """Bounds of the ratio: `policy_term` clips tokens of a negative advantage below the first, and tokens of a
        positive advantage above the second. None if it does not clip by the ratio alone, or not at all."""
        return None

    def clipped_at(
        self,
        ratio: float,
        policy_logprob: float,  # noqa: ARG002, for losses that bound something else
        advantage: float,
    ) -> Bound | None:
        """The bound that `policy_term` clips a token at; None if that cannot be told from the token alone.

        For looks at a run, without torch.

        Args:
            ratio: at the loss's level.
            policy_logprob: of the current policy.
            advantage: of the token.
        """
        bounds = self.ratio_bounds()
        if bounds is None:
            return None
        if advantage < 0 and ratio < bounds[0]:
            return "low"
        return "high" if advantage > 0 and ratio > bounds[1] else ""

    def __call__(self, inputs: LossInputs) -> LossOutputs:
        """Ratio, policy term, masks, rollout correction, KL term, aggregation, entropy bonus.

        Raises:
            TrainingError: if a term is on whose inputs are missing.
        """
        inputs = inputs.without_masked()
        tokens, mask = self._tokens(inputs), inputs.loss_mask
        term = self.policy_term(tokens)
        per_token = self._weighed(term.loss, inputs)
        kl = self._kl(inputs, tokens.log_ratio) if self.has_kl else None
        if kl is not None:
            per_token = per_token + start_of(self.kl_coef) * kl
        per_token = per_token.where(mask, 0.0)
        policy_loss = aggregated(self.aggregation, per_token, inputs)
        loss = policy_loss - self._bonus(inputs) if self.has_entropy_bonus else policy_loss
        return LossOutputs(
            loss=loss,
            per_token=per_token.detach(),
            ratio=tokens.ratio.detach(),
            clipped_low=term.clipped_low & mask,
            clipped_high=term.clipped_high & mask,
            policy_loss=policy_loss.detach(),
            kl=None if kl is None else kl.detach(),
            row_metrics=term.row_metrics,
        )

    def policy_term(self, tokens: Tokens) -> PolicyTerm:
        """The loss of each token, before masks, KL and aggregation."""
        raise NotImplementedError

    def _tokens(self, inputs: LossInputs) -> Tokens:
        log_ratio = token_log_ratio(inputs.policy_logprobs, inputs.old_logprobs)
        ratio = importance_ratio(log_ratio, inputs.loss_mask, self.ratio)
        weights, mask = inputs.rollout_weights, inputs.loss_mask
        return Tokens(
            inputs.policy_logprobs,
            log_ratio,
            ratio,
            inputs.advantages,
            mask,
            mask if inputs.policy_mask is None else mask & inputs.policy_mask,
            log_ratio.new_ones(log_ratio.shape) if weights is None else weights,
        )

    def _weighed(self, policy_term: Tensor, inputs: LossInputs) -> Tensor:
        """The policy term with the masks and weights that leave KL and denominators alone."""
        if self.off_policy_threshold is not None:
            sampling = inputs.sampling_logprobs
            sampling = inputs.old_logprobs if sampling is None else sampling
            if sampling is not None:
                keep = on_policy(
                    inputs.policy_logprobs.detach(),
                    sampling,
                    inputs.advantages,
                    inputs.loss_mask,
                    self.off_policy_threshold,
                )
                policy_term = policy_term.where(keep, 0.0)
        if inputs.policy_mask is not None and not self.pools_tokens:
            policy_term = policy_term.where(inputs.policy_mask, 0.0)
        if inputs.rollout_weights is not None and not self.weighs_rollouts_itself:
            policy_term = policy_term * inputs.rollout_weights
        return policy_term

    def _kl(self, inputs: LossInputs, log_ratio: Tensor) -> Tensor:
        if inputs.ref_logprobs is None:
            raise TrainingError(
                f"the loss has kl_coef {self.kl_coef} and got no log-probs of the reference policy"
            )
        kl = kl_estimate(self.kl_estimator, inputs.policy_logprobs, inputs.ref_logprobs)
        # Always the token ratio: with a sequence ratio each token's KL would push all other tokens (trl#6586).
        return kl * log_ratio.exp() if self.kl_bias_correction else kl

    def _bonus(self, inputs: LossInputs) -> Tensor:
        """Coefficient × mean entropy over the step's tokens that count."""
        if inputs.entropies is None:
            raise TrainingError(
                f"the loss has entropy_coef {self.entropy_coef} and got no entropies"
            )
        tokens = inputs.window_tokens
        if inputs.window_policy_tokens is not None:
            tokens = inputs.window_policy_tokens
        total = inputs.entropies.where(inputs.bonus_mask, 0.0).sum()
        return start_of(self.entropy_coef) * total / (tokens or 1)
