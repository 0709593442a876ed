"""params.yaml as typed settings: every key, its default and what it means, in one place.

Defaults live on the fields below and nowhere else. `read_params` reads the file as DVC does, resolves
recipes (`extends`) and reports everything that is wrong in one `ConfigError`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, SerializeAsAny, ValidationError, model_validator

from pipeline.component import Component, Model, problems_of
from pipeline.errors import ConfigError, Problem, nearest
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


class PromptFormat(Model):
    """How messages become the text that the policy continues."""

    system_prompt: str | None = None
    """Put before the messages; refused for messages that bring a system message of their own."""
    chat_template: str | None = None
    """A Jinja template of your own, or a path to one; `plain` for base models: the messages' contents, a blank line between. Default: the tokenizer's."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Passed to the template, such as `{enable_thinking: false}`."""
    assistant_prefix: str = ""
    """Text the answer starts with, put behind the rendered prompt (it is not trained on)."""


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

    engine: Annotated[SerializeAsAny[RolloutEngine], _of("engines")] = _default("engines", "transformers")
    group_size: PositiveInt = 8

    @model_validator(mode="after")
    def _group_has_a_baseline(self) -> GenerateRollouts:
        if self.group_size < 2:
            raise ValueError("group_size must be at least 2: a single answer is its own baseline, so its advantage is always 0")
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
            raise ValueError(f"two rewards would write the column {sorted(twice)[0]!r}; give one of them a `label`")
        return self


class ComputeAdvantages(Model):
    """From rewards of groups to advantages."""

    estimator: Annotated[SerializeAsAny[AdvantageEstimator], _of("advantages")] = _default("advantages", "group")


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
    adam_betas: tuple[Share, Share] = (0.9, 0.999)
    adam_epsilon: PositiveFloat = 1e-8
    max_grad_norm: PositiveFloat | None = 1.0
    old_logprobs: Literal["measured", "sampling"] = "measured"
    """The policy the ratio is taken against: the trainer's own numbers, or those the engine reported.
    `sampling` saves a forward pass and is exact to rounding when engine and trainer run the same code in the same precision."""
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
                "generate_rollouts cuts the distribution (top_p, top_k or min_p), so the engine's log-probs are renormalised "
                "and a ratio against them is biased; set update_policy.old_logprobs: measured"
            )
        return self


class Data(Model):
    """Where prompts come from."""

    train: Annotated[list[Annotated[SerializeAsAny[Source], _of("sources")]], Field(min_length=1)]
    evaluation: dict[str, Annotated[SerializeAsAny[Source], _of("sources")]] = Field(default_factory=dict)
    split_seed: int = 0
    """Seed of generated data and of splits; apart from `seed`, so that runs stay comparable on the same prompts."""
    on_overlap: Literal["error", "drop"] = "error"
    """What happens to a training prompt that is also an evaluation prompt (messages compared, answers not)."""


class Policy(Model):
    base: Annotated[SerializeAsAny[BasePolicy], _of("policies")] = _default("policies", "tiny")


class EvaluatePolicy(PromptFormat, Sampling):
    """How every policy of the run is judged, whatever the recipes reward."""

    scorer: Annotated[SerializeAsAny[Reward], _of("rewards")]
    engine: Annotated[SerializeAsAny[RolloutEngine], _of("engines")] = _default("engines", "transformers")
    samples: PositiveInt = 4
    greedy: bool = True
    """Also one greedy answer per prompt."""


class Iteration(Model):
    previous: str
    recipe: str
    reference: str = BASE_KEY
    """The frozen policy of the KL term."""
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
    def source_weights(self) -> dict[int, float | None]:
        """Weight of each training source by its place in `data.train`."""
        return {place: source.weight for place, source in enumerate(self.data.train)}


def read_yaml(path: Path = PARAMS_FILE) -> dict[str, Any]:
    """Reads a YAML file as DVC does (ruamel, YAML 1.2: `1e-06` is a number).

    Raises:
        ConfigError: if it is missing, malformed, or not a mapping.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        raw = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError([Problem("", f"no {path} in {Path.cwd()}; run from the project's folder")], str(path)) from None
    except (YAMLError, UnicodeDecodeError) as error:
        raise ConfigError([Problem("", " ".join(str(error).split()))], str(path)) from None
    if not isinstance(raw, dict):
        raise ConfigError([Problem("", f"must be a mapping of settings, is {type(raw).__name__}")], str(path))
    return raw


def read_params(path: Path = PARAMS_FILE) -> Params:
    """Reads and validates params.yaml.

    Raises:
        ConfigError: with every problem found, each with its place, value and nearest valid name.
    """
    return parse_params(read_yaml(path), str(path))


def parse_params(raw: Mapping[str, Any], source: str = "params.yaml") -> Params:
    """Validates the content of params.yaml; see `read_params`."""
    recipes, problems = resolve_recipes(raw.get("recipes"))
    params: Params | None = None
    try:
        params = Params.model_validate({**raw, "recipes": recipes})
    except ValidationError as error:
        problems += _without_inherited(problems_of(error), raw.get("recipes"))
    problems += _graph_problems(raw.get("iterations"), recipes, raw.get("rescores"))
    if problems or params is None:
        raise ConfigError(sorted(set(problems)), source)
    return params


def merge(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Deep merge: mappings are merged key by key, everything else is replaced.

    A component given with another `name` (or `path`) replaces the inherited one, since its options belong to it.
    """
    merged = dict(base)
    for key, value in change.items():
        inherited = merged.get(key)
        if isinstance(inherited, Mapping) and isinstance(value, Mapping):
            other_component = any(mark in value and value[mark] != inherited.get(mark) for mark in ("name", "path"))
            merged[key] = dict(value) if other_component else merge(inherited, value)
        else:
            merged[key] = value
    return merged


def resolve_recipes(raw: Any) -> tuple[dict[str, Any], list[Problem]]:
    """Applies `extends` to every recipe. Returns what could be resolved, and the problems."""
    if not isinstance(raw, Mapping):
        return {}, [] if raw is None else [Problem("recipes", f"must be a mapping of recipes, is {type(raw).__name__}")]
    resolved: dict[str, Any] = {}
    problems: list[Problem] = []

    def resolve(name: str, path: tuple[str, ...]) -> Any:
        recipe = raw[name]
        if not isinstance(recipe, Mapping) or "extends" not in recipe:
            return recipe
        parent, where = recipe["extends"], f"recipes.{name}.extends"
        own = {key: value for key, value in recipe.items() if key != "extends"}
        if parent not in raw:
            problems.append(Problem(where, f"there is no recipe {parent!r}; {nearest(parent, raw)}"))
        elif parent in path:
            problems.append(Problem(where, f"recipes extend each other in a circle: {' → '.join([*path, parent])}"))
        elif isinstance(base := resolve(parent, (*path, parent)), Mapping):
            return merge(base, own)
        return None

    for name in raw:
        recipe = resolve(name, (name,))
        if recipe is not None or "extends" not in (raw[name] or {}):
            resolved[name] = recipe
    return resolved, problems


def _without_inherited(problems: list[Problem], recipes: Any) -> list[Problem]:
    """Drops a derived recipe's copy of a problem that stands in the recipe it extends."""
    kept = []
    for problem in problems:
        section, _, rest = problem.where.partition(".")
        name, _, place = rest.partition(".")
        if section == "recipes" and isinstance(recipes, Mapping) and isinstance(recipes.get(name), Mapping):
            own, parent = recipes[name], recipes[name].get("extends")
            copied = any(p.where == f"recipes.{parent}.{place}" and p.what == problem.what for p in problems)
            if copied and parent != name and not _has(own, place):
                continue
        kept.append(problem)
    return kept


def _has(tree: Any, place: str) -> bool:
    for part in place.split("."):
        if not isinstance(tree, Mapping) or part not in tree:
            return False
        tree = tree[part]
    return True


def _graph_problems(iterations: Any, recipes: Mapping[str, Any], rescores: Any) -> list[Problem]:
    """Everything about how iterations, recipes and re-scores refer to each other."""
    problems: list[Problem] = []
    if isinstance(rescores, Mapping):
        for name, rescore in rescores.items():
            if isinstance(rescore, Mapping) and (recipe := rescore.get("recipe")) is not None and recipe not in recipes:
                problems.append(Problem(f"rescores.{name}.recipe", f"there is no recipe {recipe!r}; {nearest(recipe, recipes)}"))
    if not isinstance(iterations, Mapping):
        return problems
    known = [BASE_KEY, *iterations]
    ancestors: dict[str, list[str]] = {}
    for key in iterations:
        ancestors[key] = _ancestors(key, iterations)
    for key, item in iterations.items():
        where = f"iterations.{key}"
        if not isinstance(key, str) or not ITERATION_KEY.fullmatch(key):
            problems.append(Problem(where, f"an iteration's key is letters and four digits, such as i0001 (got {key!r})"))
        elif key == BASE_KEY:
            problems.append(Problem(where, f"{BASE_KEY} is the base policy; iterations start at i0001"))
        if not isinstance(item, Mapping):
            continue
        previous, recipe, reference = item.get("previous"), item.get("recipe"), item.get("reference", BASE_KEY)
        if previous is not None and previous not in known:
            problems.append(Problem(f"{where}.previous", f"there is no iteration {previous!r}; {nearest(previous, known)}"))
        elif key in ancestors[key]:
            circle = " → ".join([key, *ancestors[key][: ancestors[key].index(key) + 1]])
            problems.append(Problem(f"{where}.previous", f"iterations follow each other in a circle: {circle}"))
        elif reference not in (*ancestors[key], BASE_KEY):
            problems.append(
                Problem(f"{where}.reference", f"{reference!r} is not an iteration before {key}; {nearest(reference, {*ancestors[key], BASE_KEY})}")
            )
        if recipe is not None and recipe not in recipes:
            problems.append(Problem(f"{where}.recipe", f"there is no recipe {recipe!r}; {nearest(recipe, recipes)}"))
    return problems


def _ancestors(key: str, iterations: Mapping[str, Any]) -> list[str]:
    """Predecessors of `key`, nearest first, stopping at the base, at a hole, or when they repeat."""
    found: list[str] = []
    while isinstance(item := iterations.get(key), Mapping):
        key = str(item.get("previous"))
        if key in found or key == "None":
            return found
        found.append(key)
    return found
