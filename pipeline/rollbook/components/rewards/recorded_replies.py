"""What a judge was told when a step ran first, for its replay: there nobody is asked, whatever was not recorded.

`rollbook replay` puts the table that the step made then into `FOLDER` of its scratch folder. Where that folder is, it
is the only source: a reply that was found later than an error would make another table out of the same step.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rollbook.components.rewards.verdicts import COLUMN_SUFFIX, Verdict
from rollbook.core.scratch import SCRATCH

FOLDER = SCRATCH / "recorded_replies"
"""Is there in a replay, and nowhere else."""
LACKING = FOLDER / "lacking"
"""Rollouts, one a line, about which a judge wanted to ask what was not recorded."""
NOT_RECORDED = "its reply was not recorded, and a replay asks nobody"


@dataclass(frozen=True)
class Recorded:
    """What came of the votes on one row then.

    Attributes:
        verdicts: by vote; None where there was no reply.
        error: why there was none; empty if all came.
    """

    verdicts: Sequence[Verdict | None]
    error: str = ""


class RecordedReplies:
    """The replies in the tables of `FOLDER`. Damaged tables have none."""

    def __init__(self) -> None:
        self._by_row: dict[tuple[str, str], Recorded] = {}
        self._by_key: dict[str, Recorded] = {}
        for file in sorted(FOLDER.glob("*.parquet")):
            for rollout, key, recorded in _recorded_in(file):
                self._by_row[rollout, key] = recorded
                self._by_key.setdefault(key, recorded)

    def find(self, rollout: str, key: str, votes: int) -> Recorded:
        """What was recorded about a rollout, else about the same question; what is lacking is noted in `LACKING`.

        Args:
            rollout: its id.
            key: of the question, see `rollbook.components.rewards.verdicts.key_of`.
            votes: wanted.
        """
        found = self._by_row.get((rollout, key)) or self._by_key.get(key)
        if found is not None and len(found.verdicts) == votes and _is_whole(found):
            return found
        with LACKING.open("a", encoding="utf-8") as stream:
            stream.write(f"{rollout}\n")
        return Recorded([None] * votes, NOT_RECORDED)


def is_replay() -> bool:
    """Whether this is a replay, in which nobody is asked."""
    return FOLDER.is_dir()


def _is_whole(recorded: Recorded) -> bool:
    """Whether each vote has its reply, or it is known why not; older tables do not say why."""
    return bool(recorded.error) or None not in recorded.verdicts


def _recorded_in(file: Path) -> Iterator[tuple[str, str, Recorded]]:
    """Rollout, key and what was recorded, for each row and judge of a table."""
    with contextlib.suppress(OSError, pa.ArrowException), pq.ParquetFile(file) as table:
        names = [name for name in table.schema_arrow.names if name.endswith(COLUMN_SUFFIX)]
        for batch in table.iter_batches(columns=["rollout_id", *names]) if names else ():
            rollouts = batch["rollout_id"].to_pylist()
            for name in names:
                for rollout, content in zip(rollouts, batch[name].to_pylist(), strict=True):
                    with contextlib.suppress(ValueError, LookupError, TypeError):
                        stored: dict[str, Any] = json.loads(content)
                        verdicts = [
                            None if each is None else Verdict(str(each[0]), int(each[1]))
                            for each in stored["votes"]
                        ]
                        recorded = Recorded(verdicts, str(stored.get("error", "")))
                        yield str(rollout), str(stored["key"]), recorded
