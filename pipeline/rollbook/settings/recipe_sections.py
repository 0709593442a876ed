"""The sections of a recipe: one class of settings per stage of an iteration."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SerializeAsAny,
    model_validator,
)

from rollbook.components.advantages.base import AdvantageEstimator
from rollbook.components.advantages.kl_reward import RewardKl
from rollbook.components.coefficients import KlCoefficient
from rollbook.components.critics.base import Critic
from rollbook.components.engines.base import RolloutEngine, Sampling
from rollbook.components.losses.base import Loss
from rollbook.components.policies.lora import Lora
from rollbook.components.prompt_format import PromptFormat
from rollbook.components.rewards.base import Reward
from rollbook.core.component import Model, Share
from rollbook.core.registry import built, built_or_none, default
from rollbook.settings.recipe_correction import CorrectionSetting

AtLeastOne = Annotated[float, Field(ge=1, le=1000)]
Beta = Annotated[float, Field(ge=0, lt=1)]
CriticSetting = Annotated[SerializeAsAny[Critic] | None, built_or_none("critics")]


class PreparePrompts(PromptFormat):
    """Which prompts an iteration asks, and how they are written."""

    prompts_per_iteration: PositiveInt = 256
    """Prompts an update is meant to train on."""
    oversample: AtLeastOne = 1.0
    """Ask this many times more prompts; `compute_advantages` keeps the first informative groups up to
    `prompts_per_iteration` (dynamic sampling, DAPO, arXiv 2503.14476 §3.2)."""
    prefer: Literal["any", "informative"] = "any"
    """`informative` passes over prompts whose rollouts all had the same reward when they were last asked in this chain,
    as long as there are others."""
    prefer_among: AtLeastOne = 2.0
    """How many times more prompts `prefer: informative` looks at than it asks."""
    max_prompt_tokens: PositiveInt | None = None
    """Longer prompts are dropped and counted. Default: what the policy's context leaves beside the completion."""

    @property
    def prompts_asked(self) -> int:
        """Prompts of an iteration."""
        return _rounded_up(self.prompts_per_iteration * self.oversample)

    @property
    def prompts_drawn(self) -> int:
        """Prompts taken from the data for an iteration; those not asked come back in the next pass over it."""
        among = 1.0 if self.prefer == "any" else self.prefer_among
        return _rounded_up(self.prompts_asked * among)


class GenerateRollouts(Sampling):
    """One group of completions per prompt, from the policy before the update."""

    engine: Annotated[SerializeAsAny[RolloutEngine], built("engines")] = default(
        "engines", "transformers"
    )
    group_size: PositiveInt = 8
    greedy: bool = False
    """Also one greedy answer per prompt: stored and scored, never trained on; the baseline of `remax`."""


class ScoreRollouts(Model):
    """The programmable reward: a weighted sum of reward functions."""

    rewards: Annotated[
        list[Annotated[SerializeAsAny[Reward], built("rewards")]], Field(min_length=1)
    ]
    max_error_share: Share = 0.0
    """The stage stops when a larger share of rollouts made a reward function raise. An error is never a reward of 0."""

    @model_validator(mode="after")
    def _labels_differ(self) -> ScoreRollouts:
        labels = [reward.column for reward in self.rewards]
        if twice := {label for label in labels if labels.count(label) > 1}:
            raise ValueError(
                f"two rewards would write the column {sorted(twice)[0]!r}; give one of them a `label`"
            )
        return self


class ComputeAdvantages(Model):
    """From rewards of groups to advantages."""

    estimator: Annotated[SerializeAsAny[AdvantageEstimator], built("advantages")] = default(
        "advantages", "group"
    )
    reward_clip: tuple[float, float] | None = None
    """Lowest and highest reward that the estimator sees."""
    kl_coef: KlCoefficient = 0.0
    """Weight of the KL to the reference taken off the reward (PPO, RLOO), fixed or following a target. An alternative
    to the loss's `kl_coef`."""
    kl_estimator: RewardKl = "k1"
    """How that KL is estimated; k1 is unbiased, and no gradient flows through a reward."""
    drop_zero_signal: bool = False
    """Leave groups whose rewards are all equal out of the update; else their tokens count in its denominators."""

    @model_validator(mode="after")
    def _clip_is_a_range(self) -> ComputeAdvantages:
        if self.reward_clip is not None and not self.reward_clip[0] < self.reward_clip[1]:
            raise ValueError(f"reward_clip must be [lowest, highest], is {list(self.reward_clip)}")
        return self

    @property
    def needs_reference(self) -> bool:
        """Whether the KL to the reference goes into the rewards."""
        return self.kl_coef != 0


class UpdatePolicy(Model):
    """The gradient steps of one iteration."""

    loss: Annotated[SerializeAsAny[Loss], built("losses")] = default("losses", "dapo")
    lora: Lora | None = None
    """Train an adapter on the base policy. Default: all weights are trained."""
    critic: CriticSetting = None
    """What learns the values that estimator `gae` reads: `{name: head}` on the policy, or `{name: network}` of its own.
    Default: none."""
    mask_truncated: bool = False
    """Do not train on completions that were cut off at the length limit; their rewards still count in their groups."""
    top_entropy: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Only this share of an optimizer step's tokens, those of the highest entropy under the policy before the update,
    carries the policy term (arXiv 2506.01939: 0.2)."""
    rollout_correction: CorrectionSetting = "auto"
    """`auto` corrects, with the defaults, where the engine's log-probs are not the trainer's own."""
    epochs: PositiveInt = 1
    """Passes over the iteration's rollouts."""
    optimizer_steps: PositiveInt = 1
    """Optimizer steps per epoch: the rollouts are split into this many parts, whole groups together."""
    learning_rate: Annotated[float, Field(gt=0, le=1)] = 1e-6
    warmup_steps: NonNegativeInt = 0
    """Linear warm-up, counted in optimizer steps along the chain of iterations."""
    weight_decay: NonNegativeFloat = 0.0
    adam_betas: tuple[Beta, Beta] = (0.9, 0.999)
    adam_epsilon: PositiveFloat = 1e-8
    max_grad_norm: PositiveFloat | None = 1.0
    old_logprobs: Literal["measured", "sampling"] = "measured"
    """The policy the ratio is taken against: the trainer's own numbers, or those the engine reported.
    `sampling` saves a forward pass and is exact to rounding when engine and trainer run the same code."""
    micro_batch_tokens: PositiveInt = 16384
    """Tokens, padding included, that go through the model at once. Changes no gradient, but for losses that `check`
    points out."""
    skip_zero_gradient: bool = True
    """Do not compute rollouts whose gradient is exactly 0 (advantage 0, no KL, no entropy bonus). They stay in every
    denominator. `false` computes them for their metrics alone."""
    share_prompts: bool = True
    """A prompt goes through the model once for several of its completions, where that saves work and the model's
    attention allows it. Changes results by rounding only."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """`bfloat16` means autocast: master weights and optimizer state stay float32."""
    gradient_checkpointing: bool = False

    @property
    def critic_learning_rate(self) -> float:
        """Of the critic; that of the policy where it has none of its own."""
        own = None if self.critic is None else self.critic.learning_rate
        return self.learning_rate if own is None else own

    @property
    def compares_with_measured(self) -> bool:
        """Whether the ratio needs log-probs measured before the update; in a single step old is the current policy."""
        several_steps = self.epochs * self.optimizer_steps > 1
        return self.old_logprobs == "measured" and several_steps and self.loss.compares_with_old


def _rounded_up(value: float) -> int:
    """The next whole number; 110.00000000000001, which is 100 · 1.1, is 110."""
    return math.ceil(round(value, 6))
