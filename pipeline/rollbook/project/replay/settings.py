"""The params.yaml of a replay: gives the step the settings it was recorded with, whatever stands there today."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rollbook.core.errors import ConfigError, Problem, RollbookError
from rollbook.core.ids import PARAMS_FILE
from rollbook.core.yaml import read_yaml
from rollbook.dvc.lock import Entry
from rollbook.project.dependencies import StageSettings
from rollbook.project.run.run import Run
from rollbook.project.stage import Stage
from rollbook.settings.params import parse_params
from rollbook.settings.recipe import IterationSettings
from rollbook.settings.sealed import read_part
from rollbook.tables.run_info import RunInfo


def recorded_settings(stage: Stage[Any], info: RunInfo) -> StageSettings | None:
    """The settings of run_info as today's code reads them; None if it cannot."""
    try:
        found: StageSettings = stage.settings.model_validate(info.settings)
    except (ValidationError, RollbookError):
        return None
    return found


def find_params(
    entry: Entry,
    stage: Stage[Any],
    wanted: StageSettings | None,
    places: Iterable[tuple[str, Path]],
) -> tuple[str, dict[str, Any]] | None:
    """The first params.yaml that gives a step these settings and inputs.

    Args:
        entry: the step.
        stage: its declaration.
        wanted: its settings.
        places: folders with a params.yaml, each with what it is called.

    Returns:
        What it is called, and its content; None if none does.
    """
    if wanted is None:
        return None
    asked = wanted.model_dump(mode="json", serialize_as_any=True)
    for said, folder in places:
        try:
            raw = with_sealed(folder, entry.key)
            params = parse_params(raw)
            settings = stage.settings.of(params, entry.key, entry.rescore)
            reads = {path.as_posix() for path in stage.input_paths(entry.key, params)}
        except (RollbookError, ValidationError, LookupError):
            continue
        if settings.model_dump(mode="json", serialize_as_any=True) == asked and reads == {
            *entry.inputs
        }:
            return said, raw
    return None


def with_sealed(folder: Path, key: str) -> dict[str, Any]:
    """The content of a params.yaml with its sealed iterations among the others again.

    What all iterations of a run have in common is, for a sealed `key`, as it was when that was sealed.

    Raises:
        ConfigError: if one of the files cannot be read.
    """
    raw = read_yaml(folder / PARAMS_FILE)
    sealed = Run(folder).sealed
    recipes, iterations = dict(_section(raw, "recipes", folder)), {}
    for each, item in sealed.items():
        name = f"{item.part}/{item.recipe}"  # today's recipe of that name may be another one
        recipes[name] = item.then.settings
        iterations[each] = {
            **item.model_dump(mode="json", include=set(IterationSettings.model_fields)),
            "recipe": name,
        }
    if key in sealed:
        item = sealed[key]
        evaluation = read_part(item.part, folder)["evaluate_policy"]
        raw |= {**item.run, "evaluate_policy": evaluation}
    return {
        **raw,
        "recipes": recipes,
        "iterations": {**iterations, **_section(raw, "iterations", folder)},
    }


def _section(raw: Mapping[str, Any], name: str, folder: Path) -> Mapping[str, Any]:
    """A section of names and what they mean; empty where it is left out.

    Raises:
        ConfigError: if it is anything else.
    """
    found = raw.get(name) or {}
    if not isinstance(found, Mapping):
        what = f"is a {type(found).__name__}, and should hold names with what each of them means"
        raise ConfigError([Problem(name, what)], str(folder / PARAMS_FILE))
    return found


def write_params(raw: Mapping[str, Any], runtime: Mapping[str, Any], folder: Path) -> None:
    """Writes a params.yaml with this runtime."""
    from ruamel.yaml import YAML

    with (folder / PARAMS_FILE).open("w", encoding="utf-8") as stream:
        YAML(typ="safe").dump({**raw, "runtime": dict(runtime)}, stream)
