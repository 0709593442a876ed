"""Replies of a judge, kept so that nobody pays for one twice.

A reply is found by a key over all that was sent (address, model, messages, sampling) and the number of the vote. Each
is written down the moment it arrives, in `.dvc/tmp/rollbook/verdicts.sqlite`, so that a scorer that was killed goes on
where it was. The scores table holds them too, in the column `<label>_verdicts`: where the file lacks a key, the tables
of the project are read first, so that a fresh clone that pulled its tables asks nothing anew. A table that DVC has just
removed, because its stage runs again, is read in DVC's cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rollbook.core.scratch import SCRATCH
from rollbook.dvc.cache import cached_path
from rollbook.dvc.lock import LOCK_FILE, RESCORES_LOCK_FILE, output_md5s
from rollbook.tables.artifacts import ROOT

COLUMN_SUFFIX = "_verdicts"
FILE = SCRATCH / "verdicts.sqlite"
LOCK_FILES = (LOCK_FILE, RESCORES_LOCK_FILE)
KINDS = ("scores", "evaluations", "rescores")
"""Artifacts whose tables may hold verdicts."""
LOCK_SECONDS = 60.0
TABLES = """
CREATE TABLE IF NOT EXISTS verdicts (key TEXT, vote INTEGER, text TEXT, tokens INTEGER, PRIMARY KEY (key, vote))
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tables_read (path TEXT PRIMARY KEY, state TEXT);
"""

Place = tuple[str, int]
"""Key and number of the vote."""


@dataclass(frozen=True)
class Verdict:
    """A reply as stored.

    Attributes:
        text: the raw reply.
        tokens: of prompt and reply, as the endpoint counted them.
    """

    text: str
    tokens: int


def key_of(base_url: str, request: Mapping[str, Any]) -> str:
    """32 hex digits of the hash of all that decides a reply."""
    content = json.dumps([base_url.rstrip("/"), request], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def as_column(key: str, verdicts: Sequence[Verdict | None], error: str = "") -> str:
    """The replies of one row as JSON, for the scores table; null for a vote without a reply, and why there is none."""
    votes = [None if each is None else [each.text, each.tokens] for each in verdicts]
    return json.dumps({"key": key, "votes": votes, **({"error": error} if error else {})})


class VerdictStore:
    """The verdicts of the project in the current folder; outside of a DVC project nothing is kept.

    Use as a context manager, in one thread.
    """

    def __init__(self) -> None:
        self._file: sqlite3.Connection | None = None

    def __enter__(self) -> VerdictStore:
        if SCRATCH.parent.parent.is_dir():
            FILE.parent.mkdir(parents=True, exist_ok=True)
            self._file = sqlite3.connect(FILE, timeout=LOCK_SECONDS)
            self._file.execute("PRAGMA journal_mode=WAL")
            self._file.execute("PRAGMA synchronous=NORMAL")
            self._file.executescript(TABLES)
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def find(self, places: Iterable[Place]) -> dict[Place, Verdict]:
        """Those of the verdicts that are stored."""
        wanted = set(places)
        found = self._stored(wanted)
        if len(found) < len(wanted) and self._read_tables():
            found = self._stored(wanted)
        return found

    def keep(self, place: Place, verdict: Verdict) -> None:
        """Writes a verdict down at once."""
        if self._file is None:
            return
        with self._file:
            self._insert([(*place, verdict.text, verdict.tokens)])

    def _stored(self, wanted: Iterable[Place]) -> dict[Place, Verdict]:
        if self._file is None:
            return {}
        found: dict[Place, Verdict] = {}
        for key in sorted({key for key, _ in wanted}):
            rows = self._file.execute(
                "SELECT vote, text, tokens FROM verdicts WHERE key = ?", [key]
            )
            found |= {(key, vote): Verdict(text, tokens) for vote, text, tokens in rows}
        return {place: found[place] for place in wanted if place in found}

    def _read_tables(self) -> bool:
        """Takes in the verdicts of tables that are new since the last time. Returns whether there were any tables."""
        if self._file is None:
            return False
        read = dict(self._file.execute("SELECT path, state FROM tables_read"))
        states = {str(path): _state(path) for path in _tables()}
        new = {path: state for path, state in states.items() if read.get(path) != state}
        for path, state in new.items():
            with self._file:
                self._insert(_verdicts_in(Path(path)))
                self._file.execute(
                    "INSERT OR REPLACE INTO tables_read VALUES (?, ?)", [path, state]
                )
        return bool(new)

    def _insert(self, rows: Iterable[tuple[str, int, str, int]]) -> None:
        assert self._file is not None
        self._file.executemany("INSERT OR IGNORE INTO verdicts VALUES (?, ?, ?, ?)", rows)


def _tables() -> list[Path]:
    """Tables that may hold verdicts: those that are there, and the last ones of those that are not."""
    here = {path for kind in KINDS for path in (ROOT / kind).rglob("*.parquet")}
    locked = {Path(path): md5 for file in LOCK_FILES for path, md5 in output_md5s(file).items()}
    cached = {
        cached_path(md5)
        for path, md5 in locked.items()
        if path.suffix == ".parquet"
        and path.parts[1:2]
        and path.parts[1] in KINDS
        and path not in here
    }
    return sorted(here) + sorted(path for path in cached if path.is_file())


def _state(path: Path) -> str:
    facts = path.stat()
    return f"{facts.st_size}/{facts.st_mtime_ns}"


def _verdicts_in(path: Path) -> Iterator[tuple[str, int, str, int]]:
    """All verdicts of a table; one that is damaged or half written has none."""
    with contextlib.suppress(OSError, pa.ArrowException), pq.ParquetFile(path) as file:
        names = [name for name in file.schema_arrow.names if name.endswith(COLUMN_SUFFIX)]
        for batch in file.iter_batches(columns=names) if names else ():
            for name in names:
                yield from _verdicts_of(batch[name].to_pylist())


def _verdicts_of(column: Iterable[Any]) -> Iterator[tuple[str, int, str, int]]:
    for content in column:
        with contextlib.suppress(ValueError, LookupError, TypeError):
            stored = json.loads(content)
            for vote, entry in enumerate(stored["votes"]):
                if entry is not None:
                    text, tokens = entry
                    yield str(stored["key"]), vote, str(text), int(tokens)
