"""Moved to `rollbook.project.run.stored`; goes with the last module that imports it from here."""

from rollbook.project.run.stored import Places, StoredTable, row_of
from rollbook.tables.artifacts import path_of

__all__ = ["Places", "Stored", "row_of", "stored"]


class Stored(StoredTable):
    """A stored table of the current project."""

    def __init__(self, kind: str, key: str) -> None:
        super().__init__(kind, key, path_of(kind, key))


def stored(kind: str, key: str) -> Stored | None:
    """The table, or None where it is not on disk."""
    return Stored(kind, key) if path_of(kind, key).exists() else None
