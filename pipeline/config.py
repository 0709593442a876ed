"""params.yaml as typed settings: every key, its default and what it means, in one place.

Defaults live on the fields below and nowhere else. `pipeline.params` reads the file into these.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SerializeAsAny,
    model_validator,
)

from pipeline.component import Component, Model
from pipeline.registry import build

if TYPE_CHECKING:
    from pipeline.advantages.base import AdvantageEstimator
    from pipeline.engines.base import RolloutEngine
    from pipeline.losses.base import Loss
    from pipeline.policies.base import BasePolicy
    from pipeline.rewards.base import Reward
    from pipeline.sources.base import Source
else:
    AdvantageEstimator = RolloutEngine = Loss = BasePolicy = Reward = Source = Component

PARAMS_FILE = Path("params.yaml")
BASE_KEY = "i0000"
"""Key of the base policy; every chain of iterations starts from it."""
ITERATION_KEY = re.compile(r"[A-Za-z]+[0-9]{4}")
"""Letters first: DVC silently drops keys that YAML reads as numbers."""


def _of(kind: str) -> Any:
    return BeforeValidator(lambda spec: build(kind, spec))


def _default(kind: str, name: str) -> Any:
    return Field(default_factory=lambda: build(kind, name))


Share = Annotated[float, Field(ge=0, le=1)]
Beta = Annotated[float, Field(ge=0, lt=1)]


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
    max_prompt_tokens: PositiveInt | None = None
    """Longer prompts are dropped and counted. Default: what the policy's context leaves beside the completion."""


class GenerateRollouts(Sampling):
    """One group of completions per prompt, from the policy before the update."""

    engine: Annotated[SerializeAsAny[RolloutEngine], _of("engines")] = _default(
        "engines", "transformers"
    )
    group_size: PositiveInt = 8

    @model_validator(mode="after")
    def _group_has_a_baseline(self) -> GenerateRollouts:
        if self.group_size < 2:
            raise ValueError(
                "group_size must be at least 2: a single answer is its own baseline, so its advantage is always 0"
            )
        return self


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


class UpdatePolicy(Model):
    """The gradient steps of one iteration."""

    loss: Annotated[SerializeAsAny[Loss], _of("losses")] = _default("losses", "dapo")
    epochs: PositiveInt = 1
    """Passes over the iteration's rollouts."""
    optimizer_steps: PositiveInt = 1
    """Optimizer steps per epoch: the rollouts are split into this many parts, whole groups together."""
    learning_rate: PositiveFloat = 1e-6
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
    """Tokens, padding included, that go through the model at once; does not change the gradient."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """`bfloat16` means autocast: master weights and optimizer state stay float32."""
    gradient_checkpointing: bool = False


class Recipe(Model):
    """Everything that decides one iteration."""

    prepare_prompts: PreparePrompts = Field(default_factory=PreparePrompts)
    generate_rollouts: GenerateRollouts = Field(default_factory=GenerateRollouts)
    score_rollouts: ScoreRollouts
    compute_advantages: ComputeAdvantages = Field(default_factory=ComputeAdvantages)
    update_policy: UpdatePolicy = Field(default_factory=UpdatePolicy)

    @model_validator(mode="after")
    def _ratio_is_unbiased(self) -> Recipe:
        if self.generate_rollouts.truncates and self.update_policy.old_logprobs == "sampling":
            raise ValueError(
                "generate_rollouts cuts the distribution (top_p, top_k or min_p), so the engine's log-probs are "
                "renormalised and a ratio against them is biased; set update_policy.old_logprobs: measured"
            )
        return self


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
        return _labels(self.train)

    @property
    def evaluation_labels(self) -> list[str]:
        """The same for the source of each evaluation set."""
        return _labels(self.evaluation.values())


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
    recipe: str


class Runtime(Model):
    """Where things run. May change results only by floating-point order; recorded, and no DVC parameter."""

    device: str = "auto"
    threads: PositiveInt | Literal["auto"] = "auto"
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
    rescores: dict[str, Rescore] = Field(default_factory=dict)
    runtime: Runtime = Field(default_factory=Runtime)
    tracking: Tracking = Field(default_factory=Tracking)

    def chain(self, key: str) -> list[str]:
        """Iterations from the first after the base policy up to and including `key`."""
        keys: list[str] = []
        while key != BASE_KEY:
            keys.append(key)
            key = self.iterations[key].previous
        return keys[::-1]

    def recipe_of(self, key: str) -> Recipe:
        return self.recipes[self.iterations[key].recipe]

    @cached_property
    def source_weights(self) -> dict[str, float | None]:
        """Weight of each training source by its label, in the order of `data.train`."""
        weights = (source.weight for source in self.data.train)
        return dict(zip(self.data.train_labels, weights, strict=True))


def _labels(sources: Iterable[Source]) -> list[str]:
    labels: list[str] = []
    for source in sources:
        number, label = 1, source.name
        while label in labels:
            number += 1
            label = f"{source.name}_{number}"
        labels.append(label)
    return labels
