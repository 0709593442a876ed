"""params.yaml as typed settings: every key, its default and what it means, in one place.

Defaults live on the fields below and nowhere else. `pipeline.params` reads the file into these.
"""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PlainValidator,
    PositiveFloat,
    PositiveInt,
    PrivateAttr,
    SerializeAsAny,
    model_validator,
)

from pipeline.coefficients import KlCoefficient
from pipeline.component import Component, Model
from pipeline.registry import build
from pipeline.signals import ESTIMATORS, LOSSES

if TYPE_CHECKING:
    from pipeline.advantages.base import AdvantageEstimator
    from pipeline.critics.base import Critic
    from pipeline.doctor.checks.base import Check
    from pipeline.engines.base import RolloutEngine
    from pipeline.losses.base import Loss
    from pipeline.policies.base import BasePolicy
    from pipeline.rewards.base import Reward
    from pipeline.sealed import SealedIteration
    from pipeline.sources.base import Source
else:
    AdvantageEstimator = Check = Critic = Component
    RolloutEngine = Loss = BasePolicy = Reward = Source = Component

PARAMS_FILE = Path("params.yaml")
BASE_KEY = "i0000"
"""Key of the base policy; every chain of iterations starts from it."""
ITERATION_KEY = re.compile(r"[A-Za-z]+[0-9]{4}")
"""Letters first: DVC silently drops keys that YAML reads as numbers."""


def _of(kind: str) -> Any:
    return BeforeValidator(lambda spec: build(kind, spec))


def _of_or_none(kind: str) -> Any:
    return BeforeValidator(lambda spec: None if spec is None else build(kind, spec))


def _default(kind: str, name: str) -> Any:
    return Field(default_factory=lambda: build(kind, name))


Share = Annotated[float, Field(ge=0, le=1)]
Beta = Annotated[float, Field(ge=0, lt=1)]
RewardKl = Literal["k1", "k2", "k3", "abs"]
"""KL estimators without a gradient (`pipeline/advantages/kl_reward.py`)."""
RescoreName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
"""It is a folder, a key of plan.json and part of a DVC stage's name."""
CriticSetting = Annotated[SerializeAsAny[Critic] | None, _of_or_none("critics")]
AtLeastOne = Annotated[float, Field(ge=1, le=1000)]


class PromptFormat(Model):
    """How messages become the text that the policy continues."""

    system_prompt: str | None = None
    """Put before the messages; refused for messages that bring a system message of their own."""
    chat_template: str | None = None
    """A Jinja template of your own, or the path of one; `plain` for base models: the messages' contents with a
    blank line between. Default: the tokenizer's."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Passed to the template, such as `{enable_thinking: false}`."""
    assistant_prefix: str = ""
    """Text the answer starts with, put behind the rendered prompt (it is not trained on)."""

    def data_files(self) -> list[str]:
        template = self.chat_template
        return [template] if template is not None and template.endswith(".jinja") else []


class Sampling(Model):
    """How completions are drawn. Log-probs are always those of the distribution that was sampled from."""

    max_completion_tokens: PositiveInt = 512
    temperature: PositiveFloat = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: NonNegativeInt = 0
    """Keep only the k likeliest tokens; 0 keeps all."""
    min_p: Share = 0.0
    """Drop tokens less likely than this share of the likeliest one."""

    @property
    def truncates(self) -> bool:
        """Whether part of the distribution is cut away, so that log-probs are renormalised."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0


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

    engine: Annotated[SerializeAsAny[RolloutEngine], _of("engines")] = _default(
        "engines", "transformers"
    )
    group_size: PositiveInt = 8
    greedy: bool = False
    """Also one greedy answer per prompt: stored and scored, never trained on; the baseline of `remax`."""


class ScoreRollouts(Model):
    """The programmable reward: a weighted sum of reward functions."""

    rewards: Annotated[list[Annotated[SerializeAsAny[Reward], _of("rewards")]], Field(min_length=1)]
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

    estimator: Annotated[SerializeAsAny[AdvantageEstimator], _of("advantages")] = _default(
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


class Rejection(Model):
    """Takes tokens out of the loss mask where engine and trainer disagree too much (verl's `rollout_rs`).

    `statistic` of log(trainer / engine): k1 (−log ratio), k2 or k3 of each token, or their sum, mean or max over the
    rollout. Bounds of k1 are on the ratio engine / trainer; of k2 and k3 there is only `high`, on the estimate itself.
    """

    statistic: Literal[
        "token_k1",
        "token_k2",
        "token_k3",
        "sequence_sum_k1",
        "sequence_sum_k2",
        "sequence_sum_k3",
        "sequence_mean_k1",
        "sequence_mean_k2",
        "sequence_mean_k3",
        "sequence_max_k2",
        "sequence_max_k3",
    ]
    low: PositiveFloat | None = None
    """Default for k1: 1 / high."""
    high: PositiveFloat

    @model_validator(mode="after")
    def _bounds_leave_something(self) -> Rejection:
        if not self.statistic.endswith("k1"):
            if self.low is not None:
                raise ValueError(
                    f"{self.statistic} is never negative and has no `low`; leave it out"
                )
            return self
        if not (self.low or 1 / self.high) < self.high:
            raise ValueError(
                f"bounds {self.low or 1 / self.high:g} and {self.high:g} of {self.statistic} leave no ratio between"
            )
        return self


class RolloutCorrection(Model):
    """Weights c = trainer's old policy / engine, for rollouts of an engine whose log-probs are not the trainer's.

    TRL's `vllm_importance_sampling_*` and verl's `rollout_is`, `rollout_rs`. Weights multiply the policy term; those of
    weight 0 stay in every denominator, rejected ones leave it.
    """

    weights: (
        Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] | None
    ) = "token_truncate"
    """Per token, or the product over the rollout; clamped to the bounds, or 0 outside of them."""
    max: PositiveFloat | None = 2.0
    min: PositiveFloat | None = None
    normalize: bool = False
    """Divide the weights by their mean over the iteration."""
    reject: list[Rejection] = Field(default_factory=list)
    """A token leaves the loss mask if any of these rejects it; each looks at all tokens."""

    @model_validator(mode="after")
    def _has_bounds(self) -> RolloutCorrection:
        if self.weights is not None and self.max is None and self.min is None:
            raise ValueError(f"weights {self.weights} needs `max`, `min` or both")
        if self.max is not None and self.min is not None and not self.min < self.max:
            raise ValueError(f"min {self.min} must be below max {self.max}")
        if self.weights is None and self.normalize:
            raise ValueError(
                "normalize divides weights, and weights is null; leave one of them out"
            )
        if self.weights is None and not self.reject:
            raise ValueError("neither weights nor reject is set; say `rollout_correction: off`")
        return self


def _correction(value: Any) -> Any:
    """One error for what is neither a word nor a mapping, instead of one for each that it might have been."""
    if isinstance(value, Mapping):
        return RolloutCorrection.model_validate(value)
    if value in ("auto", "off") or isinstance(value, RolloutCorrection):
        return value
    raise ValueError("must be auto, off, or {weights: …, max: …}")


class Lora(Model):
    """An adapter that is trained instead of the policy's own weights (LoRA, arXiv 2106.09685).

    There is no dropout in it: the update computes the policy that generated, or ratios would not start at 1.
    """

    rank: PositiveInt = 16
    alpha: PositiveFloat = 32
    """What the adapter adds is multiplied by alpha / rank."""
    target_modules: Literal["all-linear"] | Annotated[list[str], Field(min_length=1)] = "all-linear"
    """Names of the linear layers that get one, such as `[q_proj, v_proj]`; all but the output head."""

    def cautions(self) -> list[str]:
        if importlib.util.find_spec("peft") is None:
            return ["update_policy.lora needs the package peft: pip install 'rollbook[lora]'"]
        return []


class UpdatePolicy(Model):
    """The gradient steps of one iteration."""

    loss: Annotated[SerializeAsAny[Loss], _of("losses")] = _default("losses", "dapo")
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
    rollout_correction: Annotated[
        Literal["auto", "off"] | RolloutCorrection, PlainValidator(_correction)
    ] = "auto"
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


class Data(Model):
    """Where prompts come from."""

    train: Annotated[list[Annotated[SerializeAsAny[Source], _of("sources")]], Field(min_length=1)]
    evaluation: dict[str, Annotated[SerializeAsAny[Source], _of("sources")]] = Field(
        default_factory=dict
    )
    split_seed: int = 0
    """Seed of generated data and of splits; apart from `seed`, so that runs stay comparable on the same prompts."""
    on_overlap: Literal["error", "drop"] = "error"
    """What happens to a training prompt that is also an evaluation prompt (messages compared, answers not)."""

    @property
    def train_labels(self) -> list[str]:
        """What each training source is called in the tables, in order: its name, a repeated one numbered."""
        return labels_of(source.name for source in self.train)

    @property
    def evaluation_labels(self) -> list[str]:
        """The same for the source of each evaluation set."""
        return labels_of(source.name for source in self.evaluation.values())


class Policy(Model):
    base: Annotated[SerializeAsAny[BasePolicy], _of("policies")] = _default("policies", "tiny")


class EvaluatePolicy(PromptFormat, Sampling):
    """How every policy of the run is judged, whatever the recipes reward."""

    scorer: Annotated[SerializeAsAny[Reward], _of("rewards")]
    engine: Annotated[SerializeAsAny[RolloutEngine], _of("engines")] = _default(
        "engines", "transformers"
    )
    samples: PositiveInt = 4
    greedy: bool = True
    """Also one greedy answer per prompt."""


class Iteration(Model):
    previous: str
    recipe: str
    reference: str
    """The frozen policy of the KL term; usually i0000."""
    evaluate: bool = True


class Rescore(Model):
    """A second opinion on the stored rollouts of every iteration; see `rescores/dvc.yaml`."""

    recipe: str
    """Whose rewards and estimator are taken; nothing else of it counts."""


class VllmRuntime(Model):
    """How engine `vllm` uses the machine."""

    enforce_eager: bool = True
    """Start at once; `false` compiles the model and records CUDA graphs first, worth it for long completions."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Share of the GPU's memory for weights and KV cache."""
    kv_cache_gib: PositiveFloat | None = None
    """KV cache in GiB. Default: what gpu_memory_utilization leaves; 2 on a processor."""
    max_num_seqs: PositiveInt | None = None
    """Rows at once. Default: vLLM's."""
    tensor_parallel_size: PositiveInt = 1
    """Devices that one copy of the model is spread over."""
    data_parallel_size: PositiveInt = 1
    """Copies of the model, each in a process of its own with devices and rows of its own."""


class Runtime(Model):
    """Where things run. May change results only by floating-point order; recorded, and no DVC parameter."""

    device: str = "auto"
    threads: PositiveInt | Literal["auto"] = "auto"
    scoring_processes: NonNegativeInt | Literal["auto"] = "auto"
    """Processes that rewards run in. `auto`: one per processor, none for few rows of rewards without a time limit. 0:
    all in the stage's own process, where no time limit holds."""
    attn_implementation: (
        Literal["eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention"] | None
    ) = None
    """How transformers' models attend, in every stage that opens a policy. Default: transformers' choice, `sdpa` for
    most; `eager` where a model caps its attention scores. Engine `vllm` has its own."""
    vllm: VllmRuntime = Field(default_factory=VllmRuntime)
    fork_server: bool = True
    """Whether one process per `dvc repro` imports torch, transformers and MLflow (some 600 MB), for stages to be forked
    from: seconds less per stage, and the same results. Only on Linux."""
    max_rerun_hours: NonNegativeFloat = 1.0
    """`check` stops when a change would throw away more finished work than this."""


class Tracking(Model):
    experiment: str = "rollbook"
    traces: NonNegativeInt = 8
    """Rollouts per iteration shown as MLflow traces."""


class Params(Model):
    """The whole of params.yaml, recipes resolved."""

    seed: int = 0
    data: Data
    policy: Policy = Field(default_factory=Policy)
    recipes: dict[str, Recipe]
    evaluate_policy: EvaluatePolicy
    iterations: dict[str, Iteration]
    rescores: dict[RescoreName, Rescore] = Field(default_factory=dict)
    runtime: Runtime = Field(default_factory=Runtime)
    tracking: Tracking = Field(default_factory=Tracking)
    doctor: list[Annotated[SerializeAsAny[Check], _of("doctor.checks")]] = Field(
        default_factory=list
    )
    """Checks of `rollbook doctor` with thresholds other than the defaults, left out (`off: true`), or of your own
    (`path: file.py:Class`). Decides no result; no DVC parameter."""
    _sealed: Mapping[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _checks_differ(self) -> Params:
        names = [check.name for check in self.doctor]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"doctor names the check {twice[0]!r} twice; put it all in one entry")
        return self

    def with_sealed(self, sealed: Mapping[str, SealedIteration]) -> Params:
        """The same with the iterations that `rollbook seal` took out of the file."""
        params = self.model_copy()
        params._sealed = sealed
        return params

    @property
    def sealed(self) -> Mapping[str, SealedIteration]:
        """Iterations that are finished for good and no longer part of `iterations`; see `pipeline.sealed`."""
        return self._sealed

    @property
    def every_iteration(self) -> Mapping[str, Iteration]:
        """Sealed iterations, then those of the file."""
        return {**self._sealed, **self.iterations} if self._sealed else self.iterations

    def chain(self, key: str) -> list[str]:
        """Iterations from the first after the base policy up to and including `key`, sealed ones too."""
        known = self.every_iteration
        keys: list[str] = []
        while key != BASE_KEY:
            keys.append(key)
            key = known[key].previous
        return keys[::-1]

    def recipe_of(self, key: str) -> Recipe:
        """The recipe of an iteration; of a sealed one, as it stood."""
        if key in self._sealed:
            return self.sealed[key].then.resolved
        return self.recipes[self.iterations[key].recipe]

    def prompts_drawn(self, key: str) -> int:
        """Prompts that an iteration takes from the data."""
        if key in self._sealed:
            return self.sealed[key].then.prompts_drawn
        return self.recipe_of(key).prepare_prompts.prompts_drawn

    @cached_property
    def source_weights(self) -> dict[str, float | None]:
        """Weight of each training source by its label, in the order of `data.train`."""
        weights = (source.weight for source in self.data.train)
        return dict(zip(self.data.train_labels, weights, strict=True))


def _rounded_up(value: float) -> int:
    """The next whole number; 110.00000000000001, which is 100 · 1.1, is 110."""
    return math.ceil(round(value, 6))


def labels_of(names: Iterable[str]) -> list[str]:
    """What sources of these names are called in tables: a repeated name is numbered."""
    labels: list[str] = []
    for name in names:
        number, label = 1, name
        while label in labels:
            number += 1
            label = f"{name}_{number}"
        labels.append(label)
    return labels
