"""A stage: one pure function over tables, plus a declaration of what it reads and writes.

Everything around the function is done here, the same for all stages: paths, schemas, hashes, atomic writes,
locks, metrics, run_info and progress. A stage program is

    STAGE = Stage(name="compute_advantages", settings=Settings, run=compute_advantages,
                  inputs=(Input("rollouts"), Input("scores")), outputs=(Output("advantages"),))

    if __name__ == "__main__":
        STAGE.main()
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

import pyarrow as pa

from rollbook.components.policies.adapters import is_adapter
from rollbook.core import lean_imports
from rollbook.core.errors import ConfigError, Problem, RollbookError, nearest
from rollbook.core.hashing import sha256_of
from rollbook.core.ids import BASE_KEY
from rollbook.core.process import die_with_parent, exclusive, run_program, seconds_since_start
from rollbook.dvc import fork_client, guard
from rollbook.dvc.running_steps import label_of, lock_file_of
from rollbook.project import environment
from rollbook.project.dependencies import Dependencies, StageSettings, dependencies_of
from rollbook.project.plan_file import ITERATION_STAGES, PLAN_FILE, planned_digest
from rollbook.rl.context import Context, Inputs, Outputs
from rollbook.settings.config import Params
from rollbook.settings.params import read_params
from rollbook.tables.artifacts import (
    FOLDERS,
    NAMED_TABLES,
    TABLES,
    Facts,
    path_of,
    read_facts,
    read_folder,
    read_json,
    read_table,
    refuse_other,
    write_folder,
    write_json,
    write_table,
)
from rollbook.tables.run_info import RunInfo
from rollbook.tables.schemas.versions import newest

Settings = TypeVar("Settings", bound=StageSettings)
WRITTEN_AT_ONCE = 2
"""Outputs written side by side: while a policy is hashed, the optimizer state is on its way to the disk."""


@dataclass(frozen=True)
class Input:
    """An artifact that a stage reads.

    Attributes:
        kind: artifact kind.
        key: a fixed key (`train`), or whose iteration's: the `own`, the `previous` one, the `reference`.
        name: what the stage function calls it; default its kind.
        hashed: whether the files of a folder are read and compared with its digest. Not worth it for a stage that
            wants a small file out of gigabytes; kind and key are checked all the same.
        under: label of a policy read before it, which may be an adapter on this one; read and recorded only if it is.
    """

    kind: str
    key: str = "own"
    name: str = ""
    hashed: bool = True
    under: str = ""

    @property
    def label(self) -> str:
        return self.name or self.kind

    def path(self, key: str, params: Params) -> Path:
        if self.key in ("previous", "reference"):
            return path_of(self.kind, getattr(params.every_iteration[key], self.key))
        return path_of(self.kind, key if self.key == "own" else self.key)

    def was_read(self, recorded: Mapping[str, str]) -> bool:
        """Whether a step that recorded these inputs, by label, has read this one: one of older code may not have."""
        return self.label in recorded


@dataclass(frozen=True)
class Output:
    """An artifact that a stage writes; see `Input`."""

    kind: str
    key: str = "own"
    name: str = ""

    @property
    def label(self) -> str:
        return self.name or self.kind

    def path(self, key: str) -> Path:
        return path_of(self.kind, key if self.key == "own" else self.key)


@dataclass(frozen=True)
class Stage(Generic[Settings]):
    """Declaration of a stage program; `dvc.yaml` must say the same (a test compares them).

    Attributes:
        name: of the program, `stages/<name>.py`.
        settings: what it reads of params.yaml.
        run: the pure function.
        inputs, outputs: tables and folders; metrics and run_info are written for every stage.
        pandas_later: whether it runs code that may hand pandas objects to pyarrow, such as a user's rewards.
        torch_follows: whether stages that need torch come after it, so that a fork server is worth its start.
        of_rescores: whether it runs once per re-score of params.yaml and iteration.
        rescore: name of the re-score at hand, see `for_rescore`.
    """

    name: str
    settings: type[Settings]
    run: Callable[[Settings, Inputs, Context], Outputs]
    inputs: tuple[Input, ...] = ()
    outputs: tuple[Output, ...] = ()
    pandas_later: bool = False
    torch_follows: bool = False
    of_rescores: bool = False
    rescore: str = ""

    @property
    def table_kinds(self) -> list[str]:
        """Kinds of all tables it reads or writes; of named ones, their family."""
        kinds = {item.kind for item in self.inputs} | {item.kind for item in self.outputs}
        return sorted({kind.partition("/")[0] for kind in kinds} & {*TABLES, *NAMED_TABLES})

    def for_rescore(self, name: str) -> Stage[Settings]:
        """The same stage for one re-score: it writes tables of the kind `rescores/<name>`."""
        outputs = tuple(
            replace(item, kind=f"{item.kind}/{name}", name=item.label) for item in self.outputs
        )
        return replace(self, rescore=name, outputs=outputs)

    def label(self, key: str) -> str:
        """What the step is called, as DVC calls it."""
        return label_of(self.name, key, self.rescore)

    def metrics_path(self, key: str) -> Path:
        """Numbers of iteration `key`. Those of a re-score lie beside its table: `report` reads the metrics' folder."""
        if self.rescore:
            return self.outputs[0].path(key).with_suffix(".json")
        return path_of(f"metrics/{self.name}", key)

    def run_info_path(self, key: str) -> Path:
        """What varies from run to run, of iteration `key`."""
        return path_of(f"run_info/{self.name}" + (f"/{self.rescore}" if self.rescore else ""), key)

    def input_paths(self, key: str, params: Params) -> list[Path]:
        """Paths it reads at iteration `key`."""
        return [item.path(key, params) for item in self.inputs]

    def output_paths(self, key: str) -> list[Path]:
        """Paths it writes at iteration `key`, metrics and run_info included."""
        return [
            *(item.path(key) for item in self.outputs),
            self.metrics_path(key),
            self.run_info_path(key),
        ]

    def main(self, arguments: Sequence[str] | None = None) -> None:
        """The program: `python -P -m rollbook.stages.<name> --iteration i0001`. Exits with 0, or 1 after one clear
        error."""
        parser = argparse.ArgumentParser(
            prog=f"rollbook.stages.{self.name}",
            description=(sys.modules["__main__"].__doc__ or "").partition("\n")[0],
        )
        parser.add_argument("--iteration", default=BASE_KEY, help="iteration key, such as i0001")
        parser.add_argument(
            "--debug", action="store_true", help="show tracebacks of expected errors"
        )
        if self.of_rescores:
            parser.add_argument("--rescore", required=True, help="its name in params.yaml")
        options = parser.parse_args(arguments)
        die_with_parent()
        if not self.pandas_later:
            lean_imports.settle_without_pandas()
        key = options.iteration
        stage = self.for_rescore(options.rescore) if self.of_rescores else self
        label = self.name if key == BASE_KEY else stage.label(key)
        sys.exit(run_program(lambda: stage.execute(key), label, options.debug))

    def execute(self, key: str) -> None:
        """Runs the stage on the artifacts of the current project.

        Raises:
            RollbookError: for anything wrong with settings, inputs or the work itself; nothing is half written.
        """
        guard.remember()
        with exclusive(lock_file_of(self.name, key, self.rescore), self.label(key)):
            params = read_params()
            if key != BASE_KEY and key not in params.iterations:
                what = f"there is no such iteration; {nearest(key, params.iterations)}"
                if key in params.sealed:
                    what = "is sealed, so its steps do not run any more"
                raise ConfigError([Problem(f"iterations.{key}", what)])
            if self.rescore and self.rescore not in params.rescores:
                hint = nearest(self.rescore, params.rescores)
                raise ConfigError([Problem("rescores", f"there is no {self.rescore!r}; {hint}")])
            if key == BASE_KEY and (self.rescore or self.name in ITERATION_STAGES[:-1]):
                raise ConfigError(
                    [Problem("--iteration", f"is required; {nearest('', params.iterations)}")]
                )
            if self.torch_follows and params.runtime.fork_server:
                fork_client.start_server()
            settings = self.settings.of(params, key, self.rescore)
            dependencies = dependencies_of(self, settings)
            self._check_plan(key, dependencies)
            clock = _Clock()
            inputs = self.read(key, params)
            context = Context(key, params.runtime, self.name, dependencies.digest)
            clock.lap("inputs")
            outputs = self.run(settings, inputs, context)
            clock.lap("run")
            facts = self._write(
                key,
                outputs,
                {name: fact.content_hash for name, fact in inputs.facts.items()},
                dependencies.digest,
            )
            clock.lap("outputs")
            write_json(outputs.metrics, self.metrics_path(key))
            info = self._run_info(key, outputs, context, dependencies, inputs, facts, clock)
            write_json(info.as_json(), self.run_info_path(key))
            for clean_up in context.when_written:
                clean_up()
            made = "; ".join(bar.summary() for bar in context.progress_made) or "done"
            print(f"{self.label(key)}: {made}", flush=True)

    def _check_plan(self, key: str, dependencies: Dependencies) -> None:
        """What runs must be what was planned: params.yaml or code edited while `dvc repro` runs is refused."""
        if not PLAN_FILE.exists():
            raise RollbookError(
                "there is no plan yet",
                "run `dvc repro`, or `python -P -m rollbook.stages.check` before a stage alone",
            )
        planned = planned_digest(read_json(PLAN_FILE), self.name, key, self.rescore)
        if planned != dependencies.digest:
            raise RollbookError(
                f"settings or code changed since `check` planned this run "
                f"({PLAN_FILE} holds {planned}, now {dependencies.digest})",
                "run `dvc repro` again",
            )

    def read(
        self, key: str, params: Params, place: Callable[[str, Path], Path] = lambda _, path: path
    ) -> Inputs:
        """Its inputs at iteration `key`, checked.

        Args:
            key: of the iteration.
            params: of the project.
            place: where an artifact of a kind lies that belongs at a path.

        Raises:
            ArtifactError: if one is missing, damaged, or of another kind or iteration.
        """
        tables: dict[str, pa.Table] = {}
        folders: dict[str, Path] = {}
        facts: dict[str, Facts] = {}
        for item in self.inputs:
            if item.under and not is_adapter(folders[item.under]):
                continue
            path = place(item.kind, item.path(key, params))
            if item.kind in FOLDERS:
                folders[item.label], facts[item.label] = path, _folder_facts(path, item)
            else:
                tables[item.label], facts[item.label] = read_table(path, item.kind)
        return Inputs(tables, folders, facts)

    def _write(
        self, key: str, outputs: Outputs, inputs: Mapping[str, str], settings: str
    ) -> dict[str, Facts]:
        def write(item: Output) -> Facts:
            place = key if item.key == "own" else item.key
            if item.kind in FOLDERS:
                return write_folder(outputs.folders[item.label], item.kind, place, inputs, settings)
            return write_table(outputs.tables[item.label], item.kind, place, inputs, settings)

        with ThreadPoolExecutor(WRITTEN_AT_ONCE) as pool:
            written = pool.map(write, self.outputs)
            return {item.label: facts for item, facts in zip(self.outputs, written, strict=True)}

    def _run_info(
        self,
        key: str,
        outputs: Outputs,
        context: Context,
        dependencies: Dependencies,
        inputs: Inputs,
        facts: Mapping[str, Facts],
        clock: _Clock,
    ) -> RunInfo:
        command = f"python -P -m rollbook.stages.{self.name} --iteration {key}"
        return RunInfo(
            version=newest("run_info"),
            stage=self.name,
            iteration=key,
            rescore=self.rescore,
            command=f"{command} --rescore {self.rescore}" if self.rescore else command,
            finished=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
            seconds=clock.laps,
            forked=fork_client.is_fork(),
            peak_memory_mb=environment.peak_memory_mb(),
            runtime={**context.runtime.model_dump(mode="json"), "threads_used": _threads_used()},
            environment=environment.environment(),
            settings=dependencies.settings,
            code=dependencies.code,
            files=dependencies.files,
            digest=dependencies.digest,
            inputs={name: fact.content_hash for name, fact in inputs.facts.items()},
            outputs={name: fact.content_hash for name, fact in facts.items()},
            metrics_sha256=sha256_of(self.metrics_path(key)),
            progress=[bar.record() for bar in context.progress_made],
            warnings=context.warnings,
            more=outputs.run_info,
        )


def _folder_facts(path: Path, item: Input) -> Facts:
    if item.hashed:
        return read_folder(path, item.kind)
    facts = read_facts(path)
    refuse_other(facts, item.kind, path)
    return facts


class _Clock:
    """Seconds per part of a stage; `startup` is everything from the start of the process to the first row read."""

    def __init__(self) -> None:
        self.laps = {"startup": round(seconds_since_start(), 3)}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = round(now - self._last, 3)
        self._last = now
        self.laps["total"] = round(
            sum(seconds for part, seconds in self.laps.items() if part != "total"), 3
        )


def _threads_used() -> int | None:
    """Threads torch computed with, or None if this stage did not need torch."""
    torch = sys.modules.get("torch")
    return int(torch.get_num_threads()) if torch is not None else None
