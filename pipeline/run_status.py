"""How far the run is: every step done, stale, missing, running or gone from disk; how long the rest takes.

Computed from params.yaml, dvc.lock, files and locks. DVC itself is not asked: while a stage runs, it is busy.
"""

from __future__ import annotations

import stat
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from pipeline.artifacts import ROOT, path_of, read_json
from pipeline.checking import causes, reruns_among, steps_of
from pipeline.config import Params
from pipeline.disk_use import DiskUse, disk_uses
from pipeline.dvc_lock import RESCORES_LOCK_FILE
from pipeline.errors import ArtifactError
from pipeline.ids import BASE_KEY
from pipeline.lock_entries import Entry, entries_of, read_entries
from pipeline.lock_guard import current_stages
from pipeline.plan import load_stage, make_plan
from pipeline.plan_file import RESCORE_STAGE, planned_digest
from pipeline.running_steps import RunningStep, running_steps

TRACKING_STAGE = "track_iteration"


class State(StrEnum):
    """Of a step.

    DONE: its results are there, made from what lies there now by the settings and code of now.
    STALE: it finished once, and runs again: settings, code or what it reads changed since.
    MISSING: it never finished.
    RUNNING: a process is at it.
    GONE: finished and current, but its results are not in the workspace; `dvc checkout` or `dvc pull` brings them.
    """

    DONE = "done"
    STALE = "stale"
    MISSING = "missing"
    RUNNING = "running"
    GONE = "gone"


@dataclass(frozen=True)
class StepStatus:
    """Of one step.

    Attributes:
        stage, key: which.
        state: see `State`.
        seconds: what it took last time; None if that is not known.
        expected: seconds that it is expected to take, from steps like it; None if there are none, or it is done.
        running: seconds since it began, of one that is running.
    """

    stage: str
    key: str
    state: State
    seconds: float | None
    expected: float | None
    running: float | None = None

    @property
    def left(self) -> float | None:
        """Seconds that are expected until it is done."""
        if self.state in (State.DONE, State.GONE):
            return 0.0
        return None if self.expected is None else max(0.0, self.expected - (self.running or 0.0))


@dataclass(frozen=True)
class Sealed:
    """A sealed part: name, its iterations, and those whose policy is kept."""

    part: str
    keys: Sequence[str]
    kept: Sequence[str]


@dataclass(frozen=True)
class RunStatus:
    """Of the whole run.

    Attributes:
        recipes: of the iterations of params.yaml, in order.
        steps: of the base policy and of these iterations, in order of execution; tracking is among them.
        sealed: parts that are out of the loop.
        rescores: state of every entry of `rescores:`, by name and iteration.
        disk: by kind.
        seconds_left: until all is done, at the pace of before; None if it is not known of some step.
        stale_because: what changed since stale steps ran, by kind; empty if none is.
    """

    recipes: Mapping[str, str]
    steps: Sequence[StepStatus]
    sealed: Sequence[Sealed]
    rescores: Mapping[str, Mapping[str, State]]
    disk: Sequence[DiskUse]
    seconds_left: float | None
    stale_because: str = ""

    def of(self, stage: str, key: str) -> StepStatus | None:
        """The status of a step, if there is such a step."""
        return next((each for each in self.steps if (each.stage, each.key) == (stage, key)), None)

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def read_status(params: Params, plan: Mapping[str, Any] | None = None) -> RunStatus:
    """The status of the current project. Writes nothing, and works while a stage runs.

    Args:
        params: of the project.
        plan: digests of all steps as `make_plan` says them; asked of it unless given.

    Raises:
        ConfigError: if settings cannot be planned, or rescores/dvc.lock cannot be read.
    """
    plan = make_plan(params) if plan is None else plan
    entries = list(entries_of(current_stages()))
    running = running_steps()
    states = _states(params, plan, entries, running)
    seconds = {(stage, key): _seconds(stage, key) for stage, key in states}
    steps = [
        StepStatus(
            stage,
            key,
            state,
            seconds[stage, key],
            None if state in (State.DONE, State.GONE) else _expected(stage, key, seconds, params),
            next(
                (each.seconds for each in running if (each.stage, each.key) == (stage, key)), None
            ),
        )
        for (stage, key), state in states.items()
    ]
    left = [step.left for step in steps if step.stage != TRACKING_STAGE]
    known = [each for each in left if each is not None]
    return RunStatus(
        recipes={key: item.recipe for key, item in params.iterations.items()},
        steps=steps,
        sealed=list(_sealed(params)),
        rescores=_rescores(params, plan, entries, running),
        disk=disk_uses(ROOT),
        seconds_left=sum(known) if len(known) == len(left) else None,
        stale_because=_stale_because(params, plan, entries)
        if State.STALE in states.values()
        else "",
    )


# --- states ---------------------------------------------------------------------------------------


def _states(
    params: Params,
    plan: Mapping[str, Any],
    entries: Sequence[Entry],
    running: Sequence[RunningStep],
) -> dict[tuple[str, str], State]:
    by_step = {(entry.stage, entry.key): entry for entry in entries}
    made = {path: md5 for entry in entries for path, md5 in entry.outputs.items()}
    active = {(each.stage, each.key) for each in running if not each.rescore}
    unsettled: set[str] = set()
    states: dict[tuple[str, str], State] = {}
    for name, key in steps_of(params):
        stage, entry = load_stage(name), by_step.get((name, key))
        reads = {path.as_posix() for path in stage.input_paths(key, params)}
        if (name, key) in active:
            state = State.RUNNING
        elif entry is None:
            state = State.MISSING
        elif (
            not entry.is_current(planned_digest(plan, name, key), made)
            or unsettled & reads
            or reads - entry.inputs.keys()
        ):
            state = State.STALE
        else:
            state = State.GONE if _is_gone(entry) else State.DONE
        if state not in (State.DONE, State.GONE):
            unsettled.update(path.as_posix() for path in stage.output_paths(key))
        states[name, key] = state
    for key in params.iterations:
        states[TRACKING_STAGE, key] = _tracked(by_step.get((TRACKING_STAGE, key)), made, unsettled)
    return states


def _stale_because(params: Params, plan: Mapping[str, Any], entries: Sequence[Entry]) -> str:
    """What changed; where all settings, code and data are as they were, it is what steps before them made."""
    return (
        causes(reruns_among(entries, params, plan))
        or "tables that they read, which were made again since"
    )


def _is_gone(entry: Entry) -> bool:
    """Whether an output is not in the workspace, or has another size than what was made."""
    return any(_differs_in_size(Path(path), size) for path, size in entry.sizes.items())


def _differs_in_size(path: Path, size: int) -> bool:
    """Whether it is not there, or a file of another size; what DVC counts as a folder's size is not looked at."""
    try:
        found = path.stat()
    except OSError:
        return True
    return stat.S_ISREG(found.st_mode) and found.st_size != size


def _tracked(entry: Entry | None, made: Mapping[str, str], unsettled: set[str]) -> State:
    """Of the step that shows an iteration in MLflow; it has no outputs and no digest."""
    if entry is None:
        return State.MISSING
    changed = unsettled & entry.inputs.keys() or not entry.is_current(entry.digest, made)
    return State.STALE if changed else State.DONE


def _sealed(params: Params) -> Iterator[Sealed]:
    for part in dict.fromkeys(item.part for item in params.sealed.values()):
        items = {key: item for key, item in params.sealed.items() if item.part == part}
        yield Sealed(part, list(items), [key for key, item in items.items() if item.kept])


def _rescores(
    params: Params,
    plan: Mapping[str, Any],
    entries: Sequence[Entry],
    running: Sequence[RunningStep],
) -> dict[str, dict[str, State]]:
    """State of every re-score by name and iteration; of iterations whose tables are not there yet it is missing."""
    scored = {(entry.rescore, entry.key): entry for entry in read_entries(RESCORES_LOCK_FILE)}
    made = {path: md5 for entry in entries for path, md5 in entry.outputs.items()}
    active = {(each.rescore, each.key) for each in running if each.rescore}

    def state(name: str, key: str) -> State:
        entry = scored.get((name, key))
        if (name, key) in active:
            return State.RUNNING
        if entry is None:
            return State.MISSING
        if not entry.is_current(planned_digest(plan, RESCORE_STAGE, key, name), made):
            return State.STALE
        return State.GONE if _is_gone(entry) else State.DONE

    return {name: {key: state(name, key) for key in params.iterations} for name in params.rescores}


# --- time -----------------------------------------------------------------------------------------


def _seconds(stage: str, key: str) -> float | None:
    """What a step took last time, by its run_info."""
    try:
        return float(read_json(path_of(f"run_info/{stage}", key))["seconds"]["total"])
    except (ArtifactError, LookupError, TypeError, ValueError):
        return None


def _expected(
    stage: str, key: str, seconds: Mapping[tuple[str, str], float | None], params: Params
) -> float | None:
    """The median of what the stage took in iterations of this recipe, else in any."""
    took = {
        other: value
        for (name, other), value in seconds.items()
        if name == stage and value is not None
    }
    recipes = {other: item.recipe for other, item in params.every_iteration.items()}
    for sealed in params.sealed:
        if (value := _seconds(stage, sealed)) is not None:
            took.setdefault(sealed, value)
    like = [value for other, value in took.items() if recipes.get(other) == recipes.get(key)]
    found = like or [value for other, value in took.items() if other != BASE_KEY]
    return statistics.median(found) if found else None
