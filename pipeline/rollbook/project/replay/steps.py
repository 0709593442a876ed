"""Which steps can be replayed, how they are called, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from rollbook.core.errors import ConfigError, Problem, nearest
from rollbook.core.ids import BASE_KEY, order_of
from rollbook.dvc import running_steps
from rollbook.dvc.lock import ALIASES, Entry
from rollbook.project.plan import load_stage
from rollbook.project.plan_file import DECLARED_STAGES
from rollbook.project.run.run import Run
from rollbook.project.stage import Stage
from rollbook.tables.artifacts import path_of
from rollbook.tables.run_info import RunInfo

COMMAND = "rollbook replay"
SHOWN = 5
NOT_REPLAYED = {
    "check": "reads all of params.yaml and makes the plan, which says what today's code would run",
    "report": "sums up whatever is there; `rollbook report` does so again",
    "track_iteration": "makes nothing but runs in MLflow; `rollbook track --rebuild` makes those again",
}
"""Steps of dvc.yaml that make no artifact of their own, and why there is nothing to compare."""


def stage_of(entry: Entry) -> Stage[Any]:
    """The declaration of a step's program."""
    stage = load_stage(entry.stage)
    return stage.for_rescore(entry.rescore) if entry.rescore else stage


def label_of(entry: Entry) -> str:
    """What a step is called here."""
    return running_steps.label_of(entry.stage, entry.key, entry.rescore)


def replayable(run: Run) -> list[Entry]:
    """All finished steps of a run that make artifacts, sealed ones too: by iteration, then as they follow.

    Raises:
        ConfigError: if a lock file cannot be read.
    """
    found = {
        (each.stage, each.rescore, each.key): each
        for each in chain(*run.sealed_parts.values(), run.entries, run.rescore_entries)
        if each.stage in DECLARED_STAGES
    }

    def place(each: Entry) -> tuple[bool, tuple[str, str], int]:
        return each.key != BASE_KEY, order_of(each.key), DECLARED_STAGES.index(each.stage)

    return sorted(found.values(), key=place)


def named(names: Sequence[str], entries: Sequence[Entry]) -> list[Entry]:
    """The steps among `entries` that are asked for: by label, or all of a program; in the order of `entries`.

    Raises:
        ConfigError: if a name means none of them.
    """
    wanted, problems = set[str](), []
    labels = [label_of(each) for each in entries]
    for name in names:
        stage, at, key = name.partition("@")
        program = ALIASES.get(stage, stage)
        full = f"{program}@{key or BASE_KEY}" if at or stage in ALIASES else ""
        meant = {full} & {*labels} or {
            label
            for label, each in zip(labels, entries, strict=True)
            if not full and each.stage == program
        }
        wanted |= meant
        if not stage:
            there = [label for label in labels if label.endswith(name)] if key else labels
            what = "names no program; a step is called STAGE or STAGE@K, such as "
            problems.append(Problem(name or "''", what + ", ".join((there or labels)[-SHOWN:])))
        elif stage in NOT_REPLAYED:
            problems.append(Problem(name, f"is not replayed: it {NOT_REPLAYED[stage]}"))
        elif not meant:
            known = [label for label in labels if label.partition("@")[0] == program]
            what = "no finished step is called so; "
            problems.append(
                Problem(name, what + nearest(name, known or {e.stage for e in entries}))
            )
    if problems:
        raise ConfigError(problems, COMMAND)
    return [each for label, each in zip(labels, entries, strict=True) if label in wanted]


def was_read(path: str, entry: Entry, info: RunInfo) -> bool:
    """Whether a step read an input. DVC lists the base policy too, for the case that another one is an adapter on it.

    Args:
        path: of the input.
        entry: the step.
        info: its run_info.
    """
    inputs = stage_of(entry).inputs
    for item in inputs:
        if item.was_read(info.inputs) or path != path_of(item.kind, item.key).as_posix():
            continue
        folder = Path(path).parent.as_posix()
        others = [each for each in entry.inputs if each != path and each.startswith(f"{folder}/")]
        read = [
            each.label
            for each in inputs
            if each.kind == item.kind and not each.under and each.label in info.inputs
        ]
        return len(others) < len(read)
    return True
