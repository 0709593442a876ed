"""Is this step current, and if not, why? The one answer that check, status, page, doctor, MLflow, seal and verify give.

Two questions are kept apart:

- `Currency`: would `dvc repro` run this step again? Answered from today's plan (settings and code), the lock files and
  the running processes. No file is hashed.
- `Stored`: do the results that lie on disk belong together? Each must have been made under the plan that `check`
  wrote last, from the content that lies there now. So a run stays readable after params.yaml or code was edited.

`made_from_other` answers the second for any artifacts by the content hashes that each records, without plan or lock.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rollbook.core.errors import ArtifactError
from rollbook.core.ids import BASE_KEY
from rollbook.core.own_code import PACKAGE, is_own
from rollbook.core.process import installed_versions
from rollbook.core.text import listed
from rollbook.dvc.lock import Entry, made_by
from rollbook.dvc.running_steps import RunningStep, running_steps
from rollbook.project.code import code_hashes
from rollbook.project.plan_file import (
    ITERATION_STAGES,
    ONCE_STAGES,
    PLAN_FILE,
    RESCORE_STAGE,
    planned_digest,
)
from rollbook.project.run.store import Store
from rollbook.tables.artifacts import Facts, read_json
from rollbook.tables.run_info import RunInfo

if TYPE_CHECKING:
    from rollbook.project.dependencies import CodeHashes, Dependencies
    from rollbook.settings.config import Params

# `rollbook.project.plan` is imported where it is used: it imports what stages need, and most looks at a run do without.

TRACKING_STAGE = "track_iteration"
KIND_WORDS = {"package": "package", "setting": "settings", "code": "code", "file": "data"}
"""What kinds of changes are called together."""
Step = tuple[str, str]
"""Stage and iteration key."""


class State(StrEnum):
    """State of a step.

    DONE: finished and current; its results are in the workspace.
    STALE: finished once, and runs again: settings, code or what it reads changed since.
    MISSING: never finished.
    RUNNING: a process runs it now.
    GONE: finished and current, but its results are not in the workspace; `dvc checkout` or `dvc pull` brings them.
    """

    DONE = "done"
    STALE = "stale"
    MISSING = "missing"
    RUNNING = "running"
    GONE = "gone"


@dataclass(frozen=True)
class RerunReason:
    """One difference between a finished step and today's plan of it.

    Attributes:
        kind: Rollbook as a package, a setting, a source file, or a data file that settings name.
        place: name of the package, place in params.yaml, or path of the file.
        how: the old value or version and the new one; of a file whether it is new, gone or changed.
    """

    kind: Literal["package", "setting", "code", "file"]
    place: str
    how: str

    def __str__(self) -> str:
        named = self.place if self.kind == "setting" else f"{self.kind} {self.place}"
        return f"{named}: {self.how}"


@dataclass(frozen=True)
class Rerun:
    """A finished step that would run again.

    Attributes:
        stage, key: which step.
        reasons: what changed for this step itself; empty if only something before it changed, or its run_info, which
            has what it ran with, is not here.
        seconds: what it took last time; 0 if that is not known.
    """

    stage: str
    key: str
    reasons: tuple[RerunReason, ...]
    seconds: float


@dataclass(frozen=True)
class Currency:
    """The state of every step of a run.

    Attributes:
        run: whose.
        plan: digest of every step, as today's settings and code give it.
        running: steps that a process runs now.
        states: of the steps of the base policy and of the iterations of params.yaml, in order of execution;
            `track_iteration` comes last.
        rescores: of every re-score of params.yaml, by name and iteration.
    """

    run: Store
    plan: Mapping[str, Any]
    running: Sequence[RunningStep]
    states: Mapping[Step, State]
    rescores: Mapping[str, Mapping[str, State]]

    @cached_property
    def reruns(self) -> list[Rerun]:
        """Finished training steps that run again, in order of execution.

        An upper bound: a step that comes out as before stops what follows it, and results that DVC has in its run
        cache are restored instead of made again.
        """
        code = cache(code_hashes)  # most steps run the code of another one
        return [
            self._rerun(stage, key, code)
            for (stage, key), state in self.states.items()
            if state is State.STALE and stage != TRACKING_STAGE
        ]

    @cached_property
    def unfinished(self) -> list[str]:
        """Iterations of params.yaml that have a training step which never finished."""
        return [
            key
            for key in self.run.params.iterations
            if any(
                self.states[stage, key] in (State.MISSING, State.RUNNING)
                for stage in ITERATION_STAGES
            )
        ]

    @cached_property
    def waiting_rescores(self) -> dict[str, list[str]]:
        """Iterations by re-score that `rollbook rescore --stage` would score now: their tables are there, and they were
        never scored, or rewards, estimator, code or tables changed since."""
        from rollbook.project.plan import load_stage

        made = made_by(self.run.entries)
        paths_of = load_stage(RESCORE_STAGE).input_paths

        def has_tables(key: str) -> bool:
            return all(path.as_posix() in made for path in paths_of(key, self.run.params))

        return {
            name: [
                key
                for key, state in states.items()
                if state in (State.STALE, State.MISSING) and has_tables(key)
            ]
            for name, states in self.rescores.items()
        }

    @cached_property
    def cause(self) -> str:
        """Why training steps are stale, in one line, such as `code (rollbook/rl/evaluation.py)`; empty if none is."""
        places: dict[str, list[str]] = {}
        for reason in reasons_of(self.reruns):
            named = f"{reason.place} {reason.how}" if reason.kind == "package" else reason.place
            places.setdefault(KIND_WORDS[reason.kind], []).append(named)
        if places:
            return ", ".join(f"{word} ({listed(named, 2)})" for word, named in places.items())
        if not self.reruns:
            return ""
        if any(self._digest_changed(step.stage, step.key) for step in self.reruns):
            return (
                "not known here: run_info, which has what they ran with, is not on this machine, "
                "or of another run than dvc.lock names"
            )
        return "tables that they read, which were made again since"

    def _rerun(self, stage: str, key: str, code: CodeHashes) -> Rerun:
        from rollbook.project.plan import load_stage, planned

        info = stored_info(self.run, stage, key)
        reasons: tuple[RerunReason, ...] = ()
        if info is not None and self._digest_changed(stage, key):
            now = planned(self.run.params, stage, key, code=code)
            found = list(changes(info, now, load_stage(stage).settings.places()))
            reasons = (*_upgrade(info, found), *found)
        return Rerun(stage, key, reasons, info.total_seconds if info else 0.0)

    def _digest_changed(self, stage: str, key: str) -> bool:
        entry = self._entries.get((stage, key))
        return entry is not None and entry.digest != planned_digest(self.plan, stage, key)

    @cached_property
    def _entries(self) -> Mapping[Step, Entry]:
        return {(entry.stage, entry.key): entry for entry in self.run.entries}


def currency_of(run: Store, plan: Mapping[str, Any] | None = None) -> Currency:
    """The state of every step of the run in the current folder. Writes nothing, and works while a stage runs.

    Args:
        run: whose.
        plan: digests of all steps; default those of today's settings and code.

    Raises:
        ConfigError: if settings cannot be planned, or a lock file cannot be read.
    """
    from rollbook.project.plan import make_plan

    plan = make_plan(run.params) if plan is None else plan
    running = running_steps()
    return Currency(
        run, plan, running, _states(run, plan, running), _rescore_states(run, plan, running)
    )


def steps_of(params: Params) -> Iterator[Step]:
    """All training steps, each after those it reads from."""
    yield from ((name, BASE_KEY) for name in ONCE_STAGES)
    yield "evaluate_policy", BASE_KEY
    done = {BASE_KEY, *params.sealed}
    waiting = dict(params.iterations)
    while waiting:
        ready = [key for key, item in waiting.items() if item.previous in done]
        for key in ready:
            yield from ((name, key) for name in ITERATION_STAGES)
            done.add(key)
            del waiting[key]


def is_current(
    entry: Entry, digest: str | None, made: Mapping[str, str], reads: Iterable[str] = ()
) -> bool:
    """Whether a finished step ran under this plan, and nothing that it read was made again since.

    Args:
        entry: of the lock file.
        digest: of the plan; None for steps that are not planned.
        made: md5 of outputs by path, as the lock files have them now.
        reads: paths that it reads by today's params.yaml, beside those that it read.
    """
    paths = {*entry.inputs, *reads}
    return entry.digest == digest and not any(input_changed(entry, path, made) for path in paths)


def input_changed(entry: Entry, path: str, made: Mapping[str, str]) -> bool:
    """Whether a finished step read an input in another version than was made since, or did not read it."""
    read = entry.inputs.get(path)
    return read is None or made.get(path, read) != read


def changes(info: RunInfo, now: Dependencies, places: Mapping[str, str]) -> Iterator[RerunReason]:
    """Differences between the settings, code and files of the last run and those of now, by place in params.yaml."""
    before, after = (
        flat({places.get(name, name): value for name, value in settings.items()})
        for settings in (info.settings, now.settings)
    )
    for place in sorted(before.keys() | after.keys()):
        if before.get(place) != after.get(place):
            how = f"{before.get(place, 'unset')} → {after.get(place, 'unset')}"
            yield RerunReason("setting", place, how)
    kinds: tuple[tuple[Literal["code", "file"], Mapping[str, str], Mapping[str, str]], ...] = (
        ("code", info.code, now.code),
        ("file", info.files, now.files),
    )
    for kind, old, new in kinds:
        for file in sorted(old.keys() | new.keys()):
            if old.get(file) != new.get(file):
                how = "new" if file not in old else "gone" if file not in new else "changed"
                yield RerunReason(kind, file, how)


def _upgrade(info: RunInfo, found: Sequence[RerunReason]) -> Iterator[RerunReason]:
    """Rollbook's version if it is another one now and files of its own are among what changed."""
    then = info.environment.packages.get(PACKAGE)
    now = installed_versions([PACKAGE]).get(PACKAGE)
    if None not in (then, now) and then != now and any(is_own(each.place) for each in found):
        yield RerunReason("package", PACKAGE, f"{then} → {now}")


def reasons_of(reruns: Sequence[Rerun]) -> list[RerunReason]:
    """All that changed, each once."""
    return list(dict.fromkeys(reason for step in reruns for reason in step.reasons))


def flat(value: Any, place: str = "") -> dict[str, Any]:
    """Leaves of nested JSON values by their place, such as `loss.name`."""
    if isinstance(value, Mapping):
        items: Iterator[tuple[Any, Any]] = iter(value.items())
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        return {place: value}
    found: dict[str, Any] = {}
    for key, item in items:
        found |= flat(item, f"{place}.{key}" if place else str(key))
    return found


def stored_info(run: Store, stage: str, key: str, rescore: str = "") -> RunInfo | None:
    """run_info of a step; None where it is not on disk, or damaged: `rollbook verify` names damaged files."""
    try:
        return run.info(stage, key, rescore)
    except ArtifactError:
        return None


# --- by the lock files ----------------------------------------------------------------------------


def _states(
    run: Store, plan: Mapping[str, Any], running: Sequence[RunningStep]
) -> dict[Step, State]:
    from rollbook.project.plan import load_stage

    params = run.params
    by_step = {(entry.stage, entry.key): entry for entry in run.entries}
    made = made_by(run.entries)
    active = {(each.stage, each.key) for each in running if not each.rescore}
    unsettled: set[str] = set()
    states: dict[Step, State] = {}
    for name, key in steps_of(params):
        stage, entry = load_stage(name), by_step.get((name, key))
        reads = {path.as_posix() for path in stage.input_paths(key, params)}
        if (name, key) in active:
            state = State.RUNNING
        elif entry is None:
            state = State.MISSING
        elif (
            not is_current(entry, planned_digest(plan, name, key), made, reads) or unsettled & reads
        ):
            state = State.STALE
        else:
            state = _where(run, entry)
        if state not in (State.DONE, State.GONE):
            unsettled.update(path.as_posix() for path in stage.output_paths(key))
        states[name, key] = state
    for key in params.iterations:
        states[TRACKING_STAGE, key] = _tracking(by_step.get((TRACKING_STAGE, key)), made, unsettled)
    return states


def _tracking(entry: Entry | None, made: Mapping[str, str], unsettled: set[str]) -> State:
    """State of the step that shows an iteration in MLflow; it has no outputs and no digest."""
    if entry is None:
        return State.MISSING
    changed = unsettled & entry.inputs.keys() or not is_current(entry, entry.digest, made)
    return State.STALE if changed else State.DONE


def _rescore_states(
    run: Store, plan: Mapping[str, Any], running: Sequence[RunningStep]
) -> dict[str, dict[str, State]]:
    if not run.params.rescores:
        return {}
    scored = {(entry.rescore, entry.key): entry for entry in run.rescore_entries}
    made = made_by(run.entries)
    active = {(each.rescore, each.key) for each in running if each.rescore}

    def state(name: str, key: str) -> State:
        entry = scored.get((name, key))
        if (name, key) in active:
            return State.RUNNING
        if entry is None:
            return State.MISSING
        if not is_current(entry, planned_digest(plan, RESCORE_STAGE, key, name), made):
            return State.STALE
        return _where(run, entry)

    params = run.params
    return {name: {key: state(name, key) for key in params.iterations} for name in params.rescores}


def _where(run: Store, entry: Entry) -> State:
    """Whether all outputs of a current step are in the workspace, in the size that was made."""
    gone = any(_differs_in_size(run.root / path, size) for path, size in entry.sizes.items())
    return State.GONE if gone else State.DONE


def _differs_in_size(path: Path, size: int) -> bool:
    """Whether it is not there, or a file of another size; what DVC counts as a folder's size is not looked at."""
    try:
        found = path.stat()
    except OSError:
        return True
    return stat.S_ISREG(found.st_mode) and found.st_size != size


# --- by the content on disk -----------------------------------------------------------------------


class Stored:
    """Which steps have results on disk that belong together; see the module's docstring.

    While `dvc repro` works its way down a changed run, later iterations still hold results of the old one: those
    must not end up on the curves of the new one.
    """

    def __init__(self, run: Store) -> None:
        self.run = run
        self._plan = read_json(run.root / PLAN_FILE) if (run.root / PLAN_FILE).exists() else None
        self._contents: dict[Path, str] = {}
        self._known: dict[Step, bool] = {}

    def holds(self, stage: str, key: str) -> bool:
        """Whether the results of a step are on disk, made under the recorded plan from the content that lies there.

        A step of older code did not read or make all that is declared now; if it is sealed, that is no difference.
        Must be asked of the steps that it reads from first.

        Raises:
            ArtifactError: if its metrics are damaged.
        """
        if (stage, key) not in self._known:
            self._known[stage, key] = self._holds(stage, key)
        return self._known[stage, key]

    def _holds(self, stage: str, key: str) -> bool:
        from rollbook.project.plan import load_stage

        self.run.metrics(stage, key)
        info = stored_info(self.run, stage, key)
        if info is None or not self.run.has_metrics(stage, key):
            return False
        declared, params = load_stage(stage), self.run.params
        planned_now = info.digest if self._plan is None else planned_digest(self._plan, stage, key)
        made = [item for item in declared.outputs if item.label in info.outputs]
        belongs = (
            planned_now == info.digest
            and (key in params.sealed or len(made) == len(declared.outputs))
            and all(
                self._contents.get(item.path(key, params)) == info.inputs.get(item.label)
                for item in declared.inputs
                if item.was_read(info.inputs)
            )
        )
        if belongs:
            for item in made:
                self._contents[item.path(key)] = info.outputs[item.label]
        return belongs


@dataclass(frozen=True)
class OtherSource:
    """An input of a stored artifact that has other content now than the artifact was made from.

    Attributes:
        made: the artifact.
        name: of the input.
        read: content hash that the artifact was made from.
        found: content hash that lies there.
    """

    made: Facts
    name: str
    read: str
    found: str


def made_from_other(
    made: Iterable[Facts], found: Mapping[str, str] | None = None
) -> list[OtherSource]:
    """Which artifacts were made from other content than lies beside them. Pure; nothing is read or hashed.

    Args:
        made: what artifacts of one iteration record of themselves.
        found: content hash by name of what lies there; default that of the artifacts by kind. Inputs that are not in
            it say nothing, nor does an artifact that records no inputs.
    """
    made = list(made)
    there = {facts.kind: facts.content_hash for facts in made} if found is None else found
    return [
        OtherSource(facts, name, read, there[name])
        for facts in made
        for name, read in facts.inputs.items()
        if there.get(name, read) != read
    ]
