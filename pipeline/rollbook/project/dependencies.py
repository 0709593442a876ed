"""What a stage depends on: the settings that it reads, and a hash of all code that can change its result.

A stage says with `From` which settings it reads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from rollbook.core.component import Component, Model
from rollbook.core.ids import BASE_KEY
from rollbook.project.code import code_hashes, file_of_module, hash_of_file
from rollbook.settings.config import Params


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


class Declared(Protocol):
    """As much of a stage's declaration as its dependencies follow from."""

    @property
    def name(self) -> str:
        """Of the program, `stages/<name>.py`."""

    @property
    def table_kinds(self) -> list[str]:
        """Kinds of all tables it reads or writes."""


def dependencies_of(
    stage: Declared, settings: StageSettings, code: CodeHashes = code_hashes
) -> Dependencies:
    """Settings, code and files that decide what `stage` makes."""
    models = list(models_in(settings))
    components = [model for model in models if isinstance(model, Component)]
    roots = {file_of_module(type(component).__module__) for component in components}
    roots |= {Path(file) for component in components for file in component.code_files()}
    roots |= {
        file_of_module(f"rollbook.stages.{stage.name}"),
        *(file_of_module(f"rollbook.tables.schemas.{kind}") for kind in stage.table_kinds),
    }
    files = sorted({file for model in models for file in model.data_files()})
    return Dependencies(
        settings=settings.model_dump(mode="json", serialize_as_any=True),
        code=code(frozenset(root for root in roots if root is not None)),
        files={file: hash_of_file(Path(file)) for file in files},
    )


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
