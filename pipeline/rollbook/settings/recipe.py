"""A recipe: everything that decides one iteration, and which settings do not go together."""

from __future__ import annotations

from pydantic import Field, model_validator

from rollbook.components.critics.base import Critic
from rollbook.components.signals import ESTIMATORS, LOSSES
from rollbook.core.component import Model
from rollbook.settings.recipe_correction import RolloutCorrection
from rollbook.settings.recipe_sections import (
    ComputeAdvantages,
    GenerateRollouts,
    PreparePrompts,
    ScoreRollouts,
    UpdatePolicy,
)


class Recipe(Model):
    """Everything that decides one iteration."""

    prepare_prompts: PreparePrompts = Field(default_factory=PreparePrompts)
    generate_rollouts: GenerateRollouts = Field(default_factory=GenerateRollouts)
    score_rollouts: ScoreRollouts
    compute_advantages: ComputeAdvantages = Field(default_factory=ComputeAdvantages)
    update_policy: UpdatePolicy = Field(default_factory=UpdatePolicy)

    def cautions(self) -> list[str]:
        found = []
        scale = getattr(self.compute_advantages.estimator, "scale", None)
        aggregation = self.update_policy.loss.aggregation
        if self.generate_rollouts.group_size == 2 and scale == "group":
            found.append(
                "generate_rollouts.group_size: with groups of two every unequal pair has the same two advantages, "
                "whatever the gap between the rewards"
            )
        if scale == "none" and aggregation == "row_mean":
            found.append(
                "the estimator does not divide by a deviation and the loss takes means over rollouts, which is half of "
                "Dr. GRPO: tokens of long answers still weigh less; for the whole take loss dr_grpo"
            )
        if aggregation == "constant_length" and scale not in (None, "none"):
            found.append(
                f"the loss divides by a constant length and the estimator by the deviation of the {scale}: Dr. GRPO "
                "drops both divisions; set compute_advantages.estimator.scale: none"
            )
        limit = self.generate_rollouts.max_completion_tokens
        for reward in self.score_rollouts.rewards:
            if (own := getattr(reward, "max_completion_tokens", limit)) != limit:
                found.append(
                    f"reward {reward.name} has max_completion_tokens {own}, generate_rollouts {limit}"
                )
        return found

    @model_validator(mode="after")
    def _ratio_is_unbiased(self) -> Recipe:
        if self.generate_rollouts.truncates and self.update_policy.old_logprobs == "sampling":
            raise ValueError(
                "generate_rollouts cuts the distribution (top_p, top_k or min_p), so the engine's log-probs are "
                "renormalised and a ratio against them is biased; set update_policy.old_logprobs: measured"
            )
        if (
            self.generate_rollouts.truncates
            and self.update_policy.loss.off_policy_threshold is not None
        ):
            raise ValueError(
                "generate_rollouts cuts the distribution (top_p, top_k or min_p), so the engine's log-probs are "
                "renormalised and every rollout seems to have drifted; set loss.off_policy_threshold: null"
            )
        if self.generate_rollouts.truncates and self.rollout_correction is not None:
            raise ValueError(
                "generate_rollouts cuts the distribution (top_p, top_k or min_p), so the engine's log-probs are "
                "renormalised and rollout correction would weigh every token by the mass that was left; "
                "set update_policy.rollout_correction: off, or sample from the whole distribution"
            )
        return self

    @model_validator(mode="after")
    def _mismatch_is_corrected_once(self) -> Recipe:
        correction = self.update_policy.rollout_correction
        if (
            isinstance(correction, RolloutCorrection)
            and correction.weights is not None
            and self.update_policy.old_logprobs == "sampling"
        ):
            raise ValueError(
                "with update_policy.old_logprobs: sampling the ratio itself is taken against the engine, so weights of "
                "rollout_correction would count the difference twice; set weights: null, or old_logprobs: measured"
            )
        return self

    @model_validator(mode="after")
    def _weights_are_of_the_kind_that_the_loss_takes(self) -> Recipe:
        correction = self.rollout_correction
        of_rows = correction is not None and str(correction.weights).startswith("sequence")
        if of_rows and self.update_policy.loss.needs_token_weights:
            raise ValueError(
                f"loss {self.update_policy.loss.name} multiplies the weights of a rollout's tokens; set "
                "update_policy.rollout_correction.weights to token_truncate or token_mask"
            )
        return self

    @model_validator(mode="after")
    def _loss_takes_what_the_estimator_makes(self) -> Recipe:
        loss, estimator = self.update_policy.loss, self.compute_advantages.estimator
        if estimator.makes not in loss.takes:
            takes = loss.takes[0]
            raise ValueError(
                f"loss {loss.name} trains on {' or '.join(loss.takes)}, and estimator {estimator.name} makes "
                f"{estimator.makes}; take an estimator that makes {takes}, such as {ESTIMATORS[takes]}, or a loss for "
                f"{estimator.makes}, such as {LOSSES[estimator.makes]}"
            )
        if estimator.makes != "advantages" and self.compute_advantages.needs_reference:
            raise ValueError(
                f"estimator {estimator.name} makes {estimator.makes}, and with a KL in the reward it would choose "
                "among equal answers by their KL; set compute_advantages.kl_coef: 0"
            )
        return self

    @model_validator(mode="after")
    def _masks_leave_answers_whole(self) -> Recipe:
        update, loss = self.update_policy, self.update_policy.loss
        if loss.needs_pairs and update.mask_truncated:
            raise ValueError(
                f"loss {loss.name} compares two whole answers, and update_policy.mask_truncated would empty one of "
                "them; leave it out: an answer that was cut off and scored low is a rejected one to learn from"
            )
        if loss.needs_pairs and update.top_entropy < 1:
            raise ValueError(
                f"loss {loss.name} compares two whole answers and not tokens; leave update_policy.top_entropy out"
            )
        if not loss.corrects_rollouts and isinstance(update.rollout_correction, RolloutCorrection):
            raise ValueError(
                f"loss {loss.name} does not ask which policy wrote an answer, so there is nothing to correct; leave "
                "update_policy.rollout_correction out"
            )
        return self

    @model_validator(mode="after")
    def _kl_counts_once(self) -> Recipe:
        if self.compute_advantages.needs_reference and self.update_policy.loss.has_kl:
            raise ValueError(
                "the KL to the reference is in the reward (compute_advantages.kl_coef) and in the loss "
                "(update_policy.loss.kl_coef); set one of them to 0"
            )
        return self

    @model_validator(mode="after")
    def _estimator_gets_what_it_reads(self) -> Recipe:
        estimator = self.compute_advantages.estimator
        if estimator.needs_greedy and not self.generate_rollouts.greedy:
            raise ValueError(
                f"estimator {estimator.name} reads the reward of a greedy answer; set generate_rollouts.greedy: true"
            )
        if estimator.needs_siblings and self.generate_rollouts.group_size < 2:
            raise ValueError(
                f"generate_rollouts.group_size must be at least 2: estimator {estimator.name} compares an answer with "
                "others to the same prompt"
            )
        if not estimator.reads_total and self.compute_advantages.needs_reference:
            raise ValueError(
                f"estimator {estimator.name} does not read the total reward, so a KL in it would be lost: set "
                "update_policy.loss.kl_coef instead of compute_advantages.kl_coef"
            )
        if not estimator.reads_total and self.compute_advantages.reward_clip is not None:
            raise ValueError(
                f"estimator {estimator.name} does not read the total reward, so compute_advantages.reward_clip would "
                "do nothing; leave it out"
            )
        if estimator.needs_values and self.update_policy.critic is None:
            raise ValueError(
                f"estimator {estimator.name} reads the values of a critic, and update_policy.critic is not set; set it "
                "to {name: head} or {name: network}"
            )
        if self.update_policy.critic is not None and not estimator.needs_values:
            raise ValueError(
                f"update_policy.critic learns values that estimator {estimator.name} does not read; take estimator "
                "gae, or leave the critic out"
            )
        return self

    @property
    def needs_old(self) -> bool:
        """Whether the policy before the update must be measured."""
        update = self.update_policy
        return (
            update.compares_with_measured
            or self.rollout_correction is not None
            or update.top_entropy < 1
            or self.compute_advantages.needs_reference
            or update.critic is not None  # it is run beside the policy
        )

    @property
    def needs_reference(self) -> bool:
        """Whether the reference policy must be measured."""
        return self.compute_advantages.needs_reference or self.update_policy.loss.needs_reference

    @property
    def measured_critic(self) -> Critic | None:
        """The critic whose values are measured, without what only its training looks at."""
        critic = self.update_policy.critic
        return None if critic is None else critic.as_read()

    @property
    def rollout_correction(self) -> RolloutCorrection | None:
        """What is done about an engine whose log-probs are not the trainer's, `auto` resolved; None: nothing."""
        update = self.update_policy
        if isinstance(update.rollout_correction, RolloutCorrection):
            return update.rollout_correction
        agrees = self.generate_rollouts.engine.agrees_with_trainer(update.precision)
        corrects = update.loss.corrects_rollouts and update.old_logprobs == "measured"
        if update.rollout_correction == "off" or not corrects or agrees:
            return None
        return RolloutCorrection()


class IterationSettings(Model):
    """One entry of `iterations`: the policy before, and the recipe."""

    previous: str
    recipe: str
    reference: str
    """The frozen policy of the KL term; usually i0000."""
    evaluate: bool = True
