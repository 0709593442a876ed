"""What each stage depends on: its resolved settings, and a hash of all code that can change its result.

A stage says with `From` which settings it reads. `artifacts/plan.json` holds one digest per stage and iteration
over exactly those settings and that code; DVC compares the digests key by key.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pipeline.artifacts import ROOT, read_json
from pipeline.code import code_hashes, file_of_module, hash_of_file
from pipeline.component import Component, Model
from pipeline.config import BASE_KEY, Params
from pipeline.errors import ArtifactError

if TYPE_CHECKING:
    from pipeline.stage import Stage

PLAN_FILE = ROOT / "plan.json"
ONCE_STAGES = ("prepare_data", "init_policy")
ITERATION_STAGES = (
    "prepare_prompts",
    "generate_rollouts",
    "score_rollouts",
    "measure_logprobs",
    "compute_advantages",
    "update_policy",
    "evaluate_policy",
)
RESCORE_STAGE = "rescore_rollouts"
REPORT = "report"
"""The program that sums a run up. It declares no settings; plan.json holds a digest of its code alone."""
DECLARED_STAGES = (*ONCE_STAGES, *ITERATION_STAGES, RESCORE_STAGE)
"""Programs whose inputs and outputs are declared, as they follow; other steps make no artifact of their own."""
RESCORES = "rescores"
"""Where plan.json holds the digests of re-scores, by name and iteration."""


@dataclass(frozen=True)
class From:
    """Marks a field of a stage's settings with its place, such as `recipe.generate_rollouts.temperature`.

    Places start in params.yaml, in `recipe` (that of the iteration at hand), in `rescore` (the recipe of the re-score
    at hand), in `iteration` (the iteration's own entry), at `draws` (prompts drawn by each predecessor in the chain) or
    at `evaluated` (whether this policy is to be evaluated).
    """

    place: str


class StageSettings(Model):
    """Base of the settings a stage function receives. Every field is annotated with `From`."""

    @classmethod
    def of(cls, params: Params, key: str, rescore: str = "") -> Self:
        """The settings of this stage at iteration `key`, and of the re-score of that name if it is part of one."""
        values = {name: _look_up(params, key, rescore, mark.place) for name, mark in cls._marks()}
        return cls.model_validate(values)

    @classmethod
    def places(cls) -> dict[str, str]:
        """Where each field is read from, `recipe.` left out."""
        return {name: mark.place.removeprefix("recipe.") for name, mark in cls._marks()}

    @classmethod
    def _marks(cls) -> Iterator[tuple[str, From]]:
        for name, info in cls.model_fields.items():
            yield from ((name, mark) for mark in info.metadata if isinstance(mark, From))


def _look_up(params: Params, key: str, rescore: str, place: str) -> Any:
    first, _, rest = place.partition(".")
    if first == "recipe":
        value: Any = params.recipe_of(key)
    elif first == "rescore":
        value = params.recipes[params.rescores[rescore].recipe]
    elif first == "iteration":
        value = params.every_iteration[key]
    elif first == "evaluated":
        value = key == BASE_KEY or params.every_iteration[key].evaluate
    elif first == "draws":
        value = tuple(params.prompts_drawn(each) for each in params.chain(key)[:-1])
    else:
        value = getattr(params, first)
    for part in rest.split(".") if rest else ():
        value = getattr(value, part)
    return value


def load_stage(name: str) -> Stage[Any]:
    """The `STAGE` declared in `stages/<name>.py`."""
    stage: Stage[Any] = importlib.import_module(f"stages.{name}").STAGE
    return stage


@dataclass(frozen=True)
class Dependencies:
    """What one stage at one iteration depends on besides its input artifacts.

    Attributes:
        settings: resolved settings, defaults filled in, as JSON values.
        code: hash of every source file it runs, by path (comments and docstrings left out).
        files: hash of every data file its components declare.
    """

    settings: Mapping[str, Any]
    code: Mapping[str, str]
    files: Mapping[str, str]

    @property
    def digest(self) -> str:
        content = {"settings": self.settings, "code": self.code, "files": self.files}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


CodeHashes = Callable[[frozenset[Path]], Mapping[str, str]]
"""Hashes, by path, of source files and all they import."""


def dependencies_of(
    stage: Stage[Any], settings: StageSettings, code: CodeHashes = code_hashes
) -> Dependencies:
    """Settings, code and files that decide what `stage` makes."""
    models = list(models_in(settings))
    components = [model for model in models if isinstance(model, Component)]
    roots = {file_of_module(type(component).__module__) for component in components}
    roots |= {Path(file) for component in components for file in component.code_files()}
    roots |= {
        file_of_module(f"stages.{stage.name}"),
        *(file_of_module(f"pipeline.schemas.{kind}") for kind in stage.table_kinds),
    }
    files = sorted({file for model in models for file in model.data_files()})
    return Dependencies(
        settings=settings.model_dump(mode="json", serialize_as_any=True),
        code=code(frozenset(root for root in roots if root is not None)),
        files={file: hash_of_file(Path(file)) for file in files},
    )


def _report_dependencies(code: CodeHashes) -> Dependencies:
    file = file_of_module(f"stages.{REPORT}")
    return Dependencies({}, code(frozenset() if file is None else frozenset({file})), {})


def make_plan(params: Params) -> dict[str, Any]:
    """Digests of all stages: `{"prepare_data": …, "report": …, "i0001": {"update_policy": …}, "rescores": …}`.

    Those of sealed iterations are what they were: nothing changes them any more.
    """
    code = cache(code_hashes)  # most steps run the code of another one
    plan: dict[str, Any] = {
        name: planned(params, name, BASE_KEY, code=code).digest for name in ONCE_STAGES
    }
    plan[REPORT] = _report_dependencies(code).digest
    evaluated = planned(params, "evaluate_policy", BASE_KEY, code=code)
    plan[BASE_KEY] = {"evaluate_policy": evaluated.digest}
    plan |= {key: dict(item.digests) for key, item in params.sealed.items()}
    for key in params.iterations:
        plan[key] = {
            name: planned(params, name, key, code=code).digest for name in ITERATION_STAGES
        }
    plan[RESCORES] = rescore_plan(params)
    return plan


def rescore_plan(params: Params) -> dict[str, dict[str, str]]:
    """Digests of all re-scores by name and iteration: `{"strict": {"i0001": …}}`."""
    code = cache(code_hashes)
    return {
        name: {
            key: planned(params, RESCORE_STAGE, key, name, code).digest for key in params.iterations
        }
        for name in params.rescores
    }


def planned(
    params: Params, name: str, key: str, rescore: str = "", code: CodeHashes = code_hashes
) -> Dependencies:
    """Dependencies of stage `name` at iteration `key`; of the re-score of that name if it is part of one."""
    stage = load_stage(name)
    return dependencies_of(stage, stage.settings.of(params, key, rescore), code)


def same_training_plan(one: Path, other: Path) -> bool:
    """Whether two plan.json say the same of the training chain.

    Digests of re-scores do not count: `rollbook rescore --stage` writes those anew into the file that `check` made.
    """
    try:
        plans = [{**read_json(file), RESCORES: None} for file in (one, other)]
    except ArtifactError:
        return False
    return plans[0] == plans[1]


def planned_digest(plan: Mapping[str, Any], name: str, key: str, rescore: str = "") -> str | None:
    """The digest that `plan.json` holds for a stage, or None."""
    path = (name,) if name in (*ONCE_STAGES, REPORT) else (key, name)
    entry: Any = plan
    for part in (RESCORES, rescore, key) if rescore else path:
        entry = entry.get(part) if isinstance(entry, Mapping) else None
    return entry if isinstance(entry, str) else None


def models_in(value: Any) -> Iterator[Model]:
    """All settings objects inside settings, components among them, at any depth, in order."""
    if isinstance(value, Model):
        yield value
        for name in type(value).model_fields:
            yield from models_in(getattr(value, name))
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from models_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from models_in(item)
