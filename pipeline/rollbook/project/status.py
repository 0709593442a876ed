"""How far the run is: every step done, stale, missing, running or gone from disk; how long the rest takes.

Computed from params.yaml, dvc.lock, files and locks. DVC itself is not asked: while a stage runs, it is busy.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rollbook.core.ids import BASE_KEY
from rollbook.dvc.disk_use import DiskUse, disk_uses
from rollbook.project.run.currency import TRACKING_STAGE, State, stored_info
from rollbook.project.run.run import Run
from rollbook.settings.config import Params
from rollbook.tables.artifacts import ROOT


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


def read_status(run: Run) -> RunStatus:
    """The status of a run. Writes nothing, and works while a stage runs.

    Raises:
        ConfigError: if settings cannot be planned, or a lock file cannot be read.
    """
    params, currency = run.params, run.currency
    seconds = {step: _seconds(run, *step) for step in currency.states}
    began = {(each.stage, each.key): each.seconds for each in currency.running}
    steps = [
        StepStatus(
            stage,
            key,
            state,
            seconds[stage, key],
            None if state in (State.DONE, State.GONE) else _expected(stage, key, seconds, run),
            began.get((stage, key)),
        )
        for (stage, key), state in currency.states.items()
    ]
    left = [step.left for step in steps if step.stage != TRACKING_STAGE]
    known = [each for each in left if each is not None]
    return RunStatus(
        recipes={key: item.recipe for key, item in params.iterations.items()},
        steps=steps,
        sealed=list(_sealed(params)),
        rescores=currency.rescores,
        disk=disk_uses(ROOT),
        seconds_left=sum(known) if len(known) == len(left) else None,
        stale_because=currency.cause,
    )


def _sealed(params: Params) -> Iterator[Sealed]:
    for part in dict.fromkeys(item.part for item in params.sealed.values()):
        items = {key: item for key, item in params.sealed.items() if item.part == part}
        yield Sealed(part, list(items), [key for key, item in items.items() if item.kept])


def _seconds(run: Run, stage: str, key: str) -> float | None:
    """What a step took last time; None where that is not known."""
    info = stored_info(run, stage, key)
    return info.seconds.get("total") if info else None


def _expected(
    stage: str, key: str, seconds: Mapping[tuple[str, str], float | None], run: Run
) -> float | None:
    """The median of what the stage took in iterations of this recipe, else in any."""
    took = {
        other: value
        for (name, other), value in seconds.items()
        if name == stage and value is not None
    }
    recipes = {other: item.recipe for other, item in run.params.every_iteration.items()}
    for sealed in run.params.sealed:
        if (value := _seconds(run, stage, sealed)) is not None:
            took.setdefault(sealed, value)
    like = [value for other, value in took.items() if recipes.get(other) == recipes.get(key)]
    found = like or [value for other, value in took.items() if other != BASE_KEY]
    return statistics.median(found) if found else None
