"""Which steps can be replayed, how they are called, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline import running_steps
from pipeline.config import BASE_KEY
from pipeline.dvc_lock import LOCK_FILE, RESCORES_LOCK_FILE
from pipeline.errors import ConfigError, Problem, nearest
from pipeline.lock_entries import ALIASES, Entry, read_entries
from pipeline.plan import ITERATION_STAGES, ONCE_STAGES, RESCORE_STAGE, load_stage
from pipeline.sealed import files_of, parts
from pipeline.stage import Stage
from pipeline.stored_revisions import Revision

COMMAND = "rollbook replay"
NOT_REPLAYED = {
    "check": "reads all of params.yaml and makes the plan, which says what today's code would run",
    "report": "sums up whatever is there; `rollbook report` does so again",
    "track_iteration": "makes nothing but runs in MLflow; `rollbook track --rebuild` makes those again",
}
"""Steps of dvc.yaml that make no artifact of their own, and why there is nothing to compare."""
PROGRAMS = (*ONCE_STAGES, *ITERATION_STAGES, RESCORE_STAGE)


def stage_of(entry: Entry) -> Stage[Any]:
    """The declaration of a step's program."""
    stage = load_stage(entry.stage)
    return stage.for_rescore(entry.rescore) if entry.rescore else stage


def label_of(entry: Entry) -> str:
    """What a step is called here."""
    return running_steps.label_of(entry.stage, entry.key, entry.rescore)


def replayable(revision: Revision) -> list[Entry]:
    """All finished steps of a revision that make artifacts, sealed ones too: by iteration, then as they follow.

    Raises:
        ConfigError: if a lock file cannot be read.
    """
    files = [files_of(part, revision.root)[1] for part in parts(revision.root)]
    files += [revision.root / LOCK_FILE, revision.root / RESCORES_LOCK_FILE]
    found = {
        (each.stage, each.rescore, each.key): each
        for file in files
        for each in read_entries(file)
        if each.stage in PROGRAMS
    }

    def place(each: Entry) -> tuple[bool, str, str, int]:
        return each.key != BASE_KEY, each.key[-4:], each.key, PROGRAMS.index(each.stage)

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
        if stage in NOT_REPLAYED:
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
