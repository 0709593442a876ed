"""Which steps on disk are finished and current, and what they left: metrics, settings, hashes and times.

Current are a step's results if its settings and code are those of artifacts/plan.json and its inputs are what now
lies on disk. While `dvc repro` works its way down a changed run, later iterations still hold results of the old
one; they must not end up on the curves of the new one.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.artifacts import path_of, read_json, read_metrics
from pipeline.config import Params
from pipeline.errors import ArtifactError
from pipeline.plan import load_stage
from pipeline.plan_file import ITERATION_STAGES, PLAN_FILE, planned_digest

Metrics = Mapping[str, float | None]
"""Numbers by name; None where the number is not finite."""


@dataclass(frozen=True)
class Step:
    """One finished iteration.

    Attributes:
        key: of the iteration; `previous` its predecessor's.
        number: place in the chain, from 1; the step of every curve.
        recipe: name in params.yaml.
        content: hash of everything the iteration made outside run_info.
        metrics: of all its stages.
        settings: what its stages ran with, defaults filled in, under the names of params.yaml.
        infos: run_info by stage.
    """

    key: str
    previous: str
    number: int
    recipe: str
    content: str
    metrics: Metrics
    settings: Mapping[str, Any]
    infos: Mapping[str, Mapping[str, Any]]

    @cached_property
    def finished_ms(self) -> int:
        """When its last stage ended, milliseconds since 1970."""
        return max(finished_ms(info) for info in self.infos.values())

    @cached_property
    def started_ms(self) -> int:
        """When its first stage began."""
        return min(finished_ms(info) - _took_ms(info) for info in self.infos.values())

    @property
    def environment(self) -> Mapping[str, Any]:
        """Packages, host and repository that the policy was made with."""
        found: Mapping[str, Any] = self.infos["update_policy"]["environment"]
        return found

    @cached_property
    def costs(self) -> Metrics:
        """Seconds, memory and rates of its stages: they vary from run to run, so they are no part of `content`."""
        found: dict[str, float | None] = {}
        for stage, info in self.infos.items():
            found[f"seconds/{stage}"] = info["seconds"]["total"]
            found[f"peak_memory_mb/{stage}"] = info["peak_memory_mb"]
            for bar in info.get("progress", []):
                found[f"{bar['rate_unit']}_per_second/{stage}"] = bar["per_second"]
        return found


class Disk:
    """Reads metrics and run_info, and knows the content hash of every artifact whose step is current."""

    def __init__(self, params: Params) -> None:
        self.params = params
        self.contents: dict[Path, str] = {}
        self._plan = read_json(PLAN_FILE) if PLAN_FILE.exists() else None
        self._known: dict[Path, dict[str, Any]] = {}

    def holds(self, stage: str, key: str) -> bool:
        """Whether the step is finished and current. Must be asked of the steps it reads from first.

        Raises:
            ArtifactError: if its metrics are damaged, or one of them is no number.
        """
        if not path_of(f"metrics/{stage}", key).exists():
            return False
        self.metrics(stage, key)
        try:
            info = self.info(stage, key)
        except ArtifactError:
            return False
        declared, digest = load_stage(stage), info["digest"]
        planned = digest if self._plan is None else planned_digest(self._plan, stage, key)
        made = [item for item in declared.outputs if item.label in info["outputs"]]
        current = (
            planned == digest
            and (key in self.params.sealed or len(made) == len(declared.outputs))
            and all(
                self.contents.get(item.path(key, self.params)) == info["inputs"].get(item.label)
                for item in declared.inputs
                if item.was_read(info["inputs"])
            )
        )
        if current:
            for item in made:
                self.contents[item.path(key)] = info["outputs"][item.label]
        return current

    def step(self, key: str, number: int) -> Step | None:
        """The iteration, or None if one of its stages is not finished or not current."""
        if not all(self.holds(name, key) for name in ITERATION_STAGES):
            return None
        infos = {name: self.info(name, key) for name in ITERATION_STAGES}
        metrics = {name: self.metrics(name, key) for name in ITERATION_STAGES}
        made = {name: info["outputs"] for name, info in infos.items()}
        item = self.params.every_iteration[key]
        return Step(
            key=key,
            previous=item.previous,
            number=number,
            recipe=item.recipe,
            content=hash_of([key, made, metrics]),
            metrics=merged(metrics),
            settings=self.settings(ITERATION_STAGES, key),
            infos=infos,
        )

    def settings(self, stages: Iterable[str], key: str) -> dict[str, Any]:
        """Settings by the place in params.yaml they were read from, `recipe.` left out.

        The code may have gained settings since; the step ran without those.
        """
        found: dict[str, Any] = {}
        for stage in stages:
            settings = self.info(stage, key)["settings"]
            places = load_stage(stage).settings.places()
            found |= {place: settings[name] for name, place in places.items() if name in settings}
        return found

    def info(self, stage: str, key: str) -> dict[str, Any]:
        return self._read(path_of(f"run_info/{stage}", key))

    def metrics(self, stage: str, key: str) -> dict[str, Any]:
        return self._read(path_of(f"metrics/{stage}", key), read_metrics)

    def _read(
        self, path: Path, reader: Callable[[Path], dict[str, Any]] = read_json
    ) -> dict[str, Any]:
        if path not in self._known:
            self._known[path] = reader(path)
        return self._known[path]


def merged(by_stage: Mapping[str, Metrics]) -> dict[str, float | None]:
    """Metrics of several stages as one mapping; a name that two stages use gets the stage's name before it."""
    uses = Counter(name for metrics in by_stage.values() for name in metrics)
    return {
        name if uses[name] == 1 else f"{stage}/{name}": value
        for stage, metrics in by_stage.items()
        for name, value in metrics.items()
    }


def finished_ms(info: Mapping[str, Any]) -> int:
    """When a step ended by its run_info, milliseconds since 1970."""
    return round(datetime.datetime.fromisoformat(info["finished"]).timestamp() * 1000)


def _took_ms(info: Mapping[str, Any]) -> int:
    return round(1000 * info["seconds"]["total"])


def hash_of(content: Any) -> str:
    """16 hex digits that name JSON content."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
