"""Verdicts of replays as marks: the last one on every step, kept on disk for whatever shows it."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rollbook.core.errors import ArtifactError
from rollbook.core.process import exclusive
from rollbook.core.scratch import SCRATCH
from rollbook.dvc.lock import Entry
from rollbook.project.replay.verdict import Outcome, StepVerdict
from rollbook.tables.artifacts import read_json, write_json

FILE = Path(".rollbook/verdicts.json")
LOCK = SCRATCH / "locks" / "verdicts.lock"
"""Held while verdicts are added: two replays may end at once."""


@dataclass(frozen=True)
class ReplayMark:
    """What is shown of one replay.

    Attributes:
        key: of the iteration.
        name: of the step in names of tags and metrics, such as `update_policy`.
        tags: by what they say: verdict, when, first difference.
        differing: outputs that differ; None if nothing is known of them.
        at_ms: when, milliseconds since 1970.
        outputs: md5 of what was compared with, by path.
    """

    key: str
    name: str
    tags: Mapping[str, str]
    differing: int | None
    at_ms: int
    outputs: Mapping[str, str]

    def is_about(self, md5s: Mapping[str, str]) -> bool:
        """Whether what it judged is what is recorded now; a policy may have been pruned since."""
        known = [path for path in self.outputs if path in md5s]
        return bool(known) and all(md5s[path] == self.outputs[path] for path in known)


def marks_of(
    entries: Sequence[Entry], verdicts: Sequence[StepVerdict], with_code: str
) -> list[ReplayMark]:
    """A mark for each step that was replayed just now.

    Args:
        entries: the steps.
        verdicts: one for each.
        with_code: the code that was asked for, if any was.
    """
    now = datetime.datetime.now(datetime.UTC)
    return [_mark(*each, with_code, now) for each in zip(entries, verdicts, strict=True)]


def _mark(entry: Entry, verdict: StepVerdict, with_code: str, now: datetime.datetime) -> ReplayMark:
    differing = sum(each.comparison.outcome is Outcome.DIFFERENT for each in verdict.outputs)
    tags = {
        "verdict": str(verdict.outcome),
        "at": now.isoformat(timespec="seconds"),
        "code": with_code or verdict.code,
        "first_difference": verdict.first_difference or "none",
    }
    return ReplayMark(
        key=entry.key,
        name=f"{entry.stage}.{entry.rescore}" if entry.rescore else entry.stage,
        tags=tags,
        differing=None if verdict.outcome is Outcome.NOT_REPLAYED else differing,
        at_ms=int(now.timestamp() * 1000),
        outputs=entry.outputs,
    )


def keep(marks: Sequence[ReplayMark]) -> None:
    """Writes verdicts down, over earlier ones on the same steps.

    Raises:
        ArtifactError: if another process keeps the file for itself, or it cannot be written.
    """
    with exclusive(LOCK, "writing verdicts"):
        kept = {(mark.key, mark.name): mark for mark in (*kept_marks(), *marks)}
        FILE.parent.mkdir(parents=True, exist_ok=True)
        (FILE.parent / ".gitignore").write_text("*\n", encoding="utf-8")
        write_json({"verdicts": [asdict(kept[place]) for place in sorted(kept)]}, FILE)


def kept_marks() -> list[ReplayMark]:
    """All verdicts on disk; none where the file is damaged or older code wrote it: a replay brings them back."""
    if not FILE.exists():
        return []
    try:
        return [ReplayMark(**each) for each in read_json(FILE)["verdicts"]]
    except (ArtifactError, KeyError, TypeError):
        return []
