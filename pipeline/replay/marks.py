"""Verdicts of replays as marks for MLflow."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from pipeline.dvc_lock import Entry
from pipeline.replay.verdict import Outcome, StepVerdict
from pipeline.tracking.verdicts import ReplayMark


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
