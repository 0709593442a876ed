"""params.yaml as typed settings: every key, its default and what it means.

Defaults live on the fields of these classes, of a recipe's sections and of components, and nowhere else.
`rollbook.settings.params` reads the file into these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    NonNegativeInt,
    PositiveInt,
    PrivateAttr,
    SerializeAsAny,
    model_validator,
)

from rollbook.components.engines.base import RolloutEngine, Sampling
from rollbook.components.policies.base import BasePolicy
from rollbook.components.prompt_format import PromptFormat
from rollbook.components.rewards.base import Reward
from rollbook.components.sources.base import Source
from rollbook.core.component import Component, Model
from rollbook.core.ids import BASE_KEY
from rollbook.core.registry import built, default
from rollbook.core.runtime import Runtime
from rollbook.settings.recipe import IterationSettings, Recipe
from rollbook.settings.sealed import SealedIteration

ONCE_SETTINGS = ("seed", "data", "policy")
"""Sections of params.yaml that every iteration of a run has in common."""
RescoreName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
"""It is a folder, a key of plan.json and part of a DVC stage's name."""


class Data(Model):
    """Where prompts come from."""

    train: Annotated[list[Annotated[SerializeAsAny[Source], built("sources")]], Field(min_length=1)]
    evaluation: dict[str, Annotated[SerializeAsAny[Source], built("sources")]] = Field(
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
    base: Annotated[SerializeAsAny[BasePolicy], built("policies")] = default("policies", "tiny")


class EvaluatePolicy(PromptFormat, Sampling):
    """How every policy of the run is judged, whatever the recipes reward."""

    scorer: Annotated[SerializeAsAny[Reward], built("rewards")]
    engine: Annotated[SerializeAsAny[RolloutEngine], built("engines")] = default(
        "engines", "transformers"
    )
    samples: PositiveInt = 4
    greedy: bool = True
    """Also one greedy answer per prompt."""


class Rescore(Model):
    """A second opinion on the stored rollouts of every iteration; see `rescores/dvc.yaml`."""

    recipe: str
    """Whose rewards and estimator are taken; nothing else of it counts."""


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
    iterations: dict[str, IterationSettings]
    rescores: dict[RescoreName, Rescore] = Field(default_factory=dict)
    runtime: Runtime = Field(default_factory=Runtime)
    tracking: Tracking = Field(default_factory=Tracking)
    doctor: list[Annotated[SerializeAsAny[Component], built("doctor.checks")]] = Field(
        default_factory=list
    )
    """Checks of `rollbook doctor` with thresholds other than the defaults, left out (`off: true`), or of your own
    (`path: file.py:Class`). Decides no result; no DVC parameter."""
    _sealed: Mapping[str, SealedIteration] = PrivateAttr(default_factory=dict)

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
        """Iterations that are finished for good and no longer part of `iterations`; see `rollbook.settings.sealed`."""
        return self._sealed

    @property
    def every_iteration(self) -> Mapping[str, IterationSettings]:
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


def run_settings(params: Params) -> dict[str, Any]:
    """What all iterations of a run have in common, as JSON values."""
    dumped = params.model_dump(mode="json", include=set(ONCE_SETTINGS), serialize_as_any=True)
    return {name: dumped[name] for name in ONCE_SETTINGS}


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
