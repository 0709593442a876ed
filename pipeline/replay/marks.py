"""Verdicts of replays as marks in MLflow."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from pipeline.lock_entries import Entry
from pipeline.params import read_params
from pipeline.replay.verdict import Outcome, StepVerdict
from pipeline.tracking.replays import ReplayMark, send_replays


def send_marks(entries: Sequence[Entry], verdicts: Sequence[StepVerdict], with_code: str) -> int:
    """Marks the runs in MLflow of what was replayed in the current project.

    Args:
        entries: the steps.
        verdicts: one for each.
        with_code: the code that was asked for, if any was.

    Returns:
        How many of them MLflow has a run of.

    Raises:
        ConfigError: if params.yaml cannot be read.
        TrackingError: if the store is away, busy or refuses.
    """
    pairs = zip(entries, verdicts, strict=True)
    now = datetime.datetime.now(datetime.UTC)
    return send_replays(read_params(), [_mark(*each, with_code, now) for each in pairs])


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
    )
