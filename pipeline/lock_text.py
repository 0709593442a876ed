"""dvc.lock as text: entries taken out, and put elsewhere, as DVC wrote them.

DVC's own layout is read line by line: with hundreds of iterations a YAML parser would need seconds.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

HEAD = "schema: '2.0'\nstages:\n"


def entries_of(text: str) -> dict[str, str]:
    """Text of every entry of a lock file by the name of its stage, such as `update_policy@i0001`."""
    found: dict[str, str] = {}
    for name, line in _lines(text):
        if name:
            found[name] = found.get(name, "") + line
    return found


def lock_of(entries: Iterable[str]) -> str:
    """A lock file of these entries."""
    return HEAD + "".join(entries)


def without(text: str, names: Container[str]) -> str:
    """A lock file without the entries of some stages; nothing if no entry is left."""
    kept = [(name, line) for name, line in _lines(text) if name not in names]
    return "".join(line for _, line in kept) if any(name for name, _ in kept) else ""


def _lines(text: str) -> Iterator[tuple[str, str]]:
    """Every line with the name of the stage whose entry it is part of; empty outside of entries."""
    name, inside = "", False
    for line in text.splitlines(keepends=True):
        if not line.startswith(" "):
            inside, name = line.rstrip() == "stages:", ""
        elif inside and not line.startswith("   "):
            name = line.strip().removesuffix(":").strip("'\"")
        yield name, line
