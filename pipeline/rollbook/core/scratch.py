"""The project's scratch folder, and hashes remembered there."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

SCRATCH = Path(".dvc/tmp/rollbook")
"""Caches and locks; safe to delete."""
MOST = 20_000
"""Entries kept of a cache, the newest."""


class HashCache:
    """A small JSON file of hashes that were computed before. A lost or damaged one is only slower.

    Args:
        name: of the file in the scratch folder.
    """

    def __init__(self, name: str) -> None:
        self.file = SCRATCH / name
        self.changed = False
        try:
            known = json.loads(self.file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            known = None
        self.entries: dict[str, Any] = known if isinstance(known, dict) else {}

    def get(self, mark: str) -> Any:
        """What is known under a mark, or None."""
        return self.entries.get(mark)

    def put(self, mark: str, entry: Any) -> Any:
        """Remembers an entry until `save`, and returns it."""
        self.entries[mark] = entry
        self.changed = True
        return entry

    def save(self) -> None:
        """Writes what is new; where that is not possible, it is forgotten."""
        if not self.changed:
            return
        temporary = self.file.with_suffix(f".{os.getpid()}.new")
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            kept = list(self.entries.items())[-MOST:]
            temporary.write_text(json.dumps(dict(kept)), encoding="utf-8")
            temporary.replace(self.file)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
