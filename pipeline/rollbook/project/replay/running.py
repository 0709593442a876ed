"""Runs a finished step again in a scratch folder: the recorded command on the recorded inputs, code and settings."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollbook.core.errors import ArtifactError, RollbookError
from rollbook.core.hashing import short
from rollbook.core.process import exclusive
from rollbook.core.scratch import SCRATCH
from rollbook.dvc.fork_client import STAGES
from rollbook.dvc.lock import Entry
from rollbook.project.plan_file import ONCE_STAGES, PLAN_FILE, RESCORES
from rollbook.project.replay.choosing import Choice, Options
from rollbook.project.replay.code_trees import CodeTrees
from rollbook.project.replay.differing import other_labels
from rollbook.project.replay.environment import environment_changes, recorded_runtime, tolerance_of
from rollbook.project.replay.judging import Judge
from rollbook.project.replay.replies import put_replies, refuse_unrecorded
from rollbook.project.replay.settings import write_params
from rollbook.project.replay.steps import label_of, stage_of, was_read
from rollbook.project.replay.stored import StoredArtifacts
from rollbook.project.replay.verdict import Outcome, StepVerdict, worst
from rollbook.project.run.run import Run
from rollbook.tables.artifacts import FOLDERS, path_of, write_json
from rollbook.tables.run_info import RunInfo

FOLDER = SCRATCH / "replay"
"""Inside of DVC's own folder, where DVC does not look for pipelines."""
RECORDED = FOLDER / "recorded"
"""Recorded artifacts that are looked into, each at its path in a project."""


@contextlib.contextmanager
def replaying(options: Options, keep: bool = False) -> Iterator[Replayer]:
    """Makes a scratch folder for replays, and removes it.

    Args:
        options: how to replay.
        keep: whether the folder stays, until the next replay.

    Raises:
        ArtifactError: if another replay is going on in this project.
    """
    with exclusive(SCRATCH / "locks" / "replay.lock", "rollbook replay"):
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(parents=True)
        try:
            yield Replayer(options)
        finally:
            if not keep:
                shutil.rmtree(FOLDER, ignore_errors=True)


class Replayer:
    """Replays steps, one after the other."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._choice = Choice(options, CodeTrees(FOLDER / "code"))
        self._stored = StoredArtifacts(FOLDER / "fetched", options.revision.is_workspace)

    def replay(self, entry: Entry) -> StepVerdict:
        """Runs one step again and compares. What keeps it from running is the verdict's `problem`."""
        label = label_of(entry)
        started = time.perf_counter()
        try:
            verdict = self._replay(entry, label)
        except RollbookError as error:
            problem = error.line
            verdict = StepVerdict(label, Outcome.NOT_REPLAYED, problem)
        return replace(verdict, seconds=round(time.perf_counter() - started, 3))

    def _replay(self, entry: Entry, label: str) -> StepVerdict:
        info = self._info(entry)
        setting = self._choice.setting(entry, info)
        runtime = recorded_runtime(info)
        if self._options.device:
            runtime["device"] = self._options.device
        folder = setting.tree.folder
        shutil.rmtree(folder / PLAN_FILE.parent, ignore_errors=True)
        judge = Judge(self._stored, folder, RECORDED)
        self._put_inputs(entry, info, folder)
        put_replies(entry, info.code, self._stored, setting.tree)
        write_params(setting.raw, runtime, folder)
        programs = setting.tree.programs
        step = filter(None, (entry.stage, entry.key, entry.rescore))
        write_json(
            _plan(entry, setting.digest or programs.planned_digest(*step)), folder / PLAN_FILE
        )
        try:
            programs.run_stage(*_started(info))
        except RollbookError as error:
            refuse_unrecorded(setting.tree)
            if str(runtime.get("device")).startswith("cuda") and not self._options.device:
                hint = "it ran on a GPU; with --device cpu it is computed here and judged with a tolerance"
                raise RollbookError(error.message, hint) from None
            raise
        refuse_unrecorded(setting.tree)
        now = Run(folder).needed_info(entry.stage, entry.key, entry.rescore)
        if read_otherwise := other_labels(now.inputs, info.inputs):
            raise ArtifactError(
                f"{', '.join(read_otherwise)} of {label}: what the lock file names is not what the step read then",
                "`rollbook verify` says which of both was changed",
            )
        tolerance = tolerance_of(info, now, self._options.tolerance)
        outputs = judge.outputs(entry, info, tolerance)
        return StepVerdict(
            step=label,
            outcome=worst(each.comparison.outcome for each in outputs),
            outputs=outputs,
            tolerance=tolerance,
            environment=tuple(environment_changes(info, now)),
            code_since=setting.code_since,
            code=setting.tree.said,
            settings=setting.settings,
            notes=(*_taken_over(entry, info), *setting.notes, *judge.altered_inputs(entry, info)),
            seconds_then=info.total_seconds,
        )

    def _info(self, entry: Entry) -> RunInfo:
        """The step's run_info, as it was recorded."""
        path = stage_of(entry).run_info_path(entry.key).as_posix()
        if path not in entry.outputs:
            raise ArtifactError(
                f"{label_of(entry)}: its lock entry names no {path}", "run `dvc repro`"
            )
        if not (RECORDED / path).exists():
            self._stored.put(path, entry.outputs[path], RECORDED / path)
        return Run(RECORDED).needed_info(entry.stage, entry.key, entry.rescore)

    def _put_inputs(self, entry: Entry, info: RunInfo, folder: Path) -> None:
        """Everything the step read. A base policy that no adapter needed is left out."""
        for path, md5 in entry.inputs.items():
            if not was_read(path, entry, info):
                continue
            try:
                self._stored.put(path, md5, folder / path)
            except ArtifactError:
                self._refuse_pruned(Path(path))
                raise

    def _refuse_pruned(self, path: Path) -> None:
        """Raises ArtifactError with the way to make it again if sealing removed a policy or optimizer state."""
        key = path.name
        item = self._options.revision.sealed.get(key)
        if item is not None and not item.kept and path in [path_of(kind, key) for kind in FOLDERS]:
            raise ArtifactError(
                f"{path}: was pruned when {item.part} was sealed, and no remote has it",
                f"`rollbook seal --rebuild {key}` makes it again",
            ) from None


def _started(info: RunInfo) -> tuple[str, list[str]]:
    """Name and arguments of the stage program that the step ran.

    Raises:
        ArtifactError: if its command is no such program.
    """
    python, *arguments = shlex.split(info.command)
    option, module, *more = arguments[arguments[:1] == ["-P"] :]
    if python != "python" or option != "-m" or not module.startswith(STAGES):
        raise ArtifactError(f"{info.command!r} is no command of a stage")
    return module.rpartition(".")[2], more


def _taken_over(entry: Entry, info: RunInfo) -> Iterator[str]:
    """Says that the lock entry names other settings and code than the step ran with."""
    if entry.digest not in (None, info.digest):
        yield (
            f"it ran with settings and code {short(info.digest)}, and is replayed with them; its lock entry "
            f"says {short(str(entry.digest))}: `dvc commit` took the result over without running it again"
        )


def _plan(entry: Entry, digest: str) -> dict[str, Any]:
    """A plan.json that knows this one step."""
    if entry.stage in ONCE_STAGES:
        return {entry.stage: digest}
    if entry.rescore:
        return {RESCORES: {entry.rescore: {entry.key: digest}}}
    return {entry.key: {entry.stage: digest}}
