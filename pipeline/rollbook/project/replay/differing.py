"""Two versions of an artifact, then and now: a table, a folder or numbers; and their hashes by label."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollbook.core.errors import ArtifactError
from rollbook.core.hashing import FACTS_FILE, files_in
from rollbook.project.replay.distances import finite_or_none, number_distances
from rollbook.project.replay.tables import facts_that_differ, table_difference
from rollbook.project.replay.verdict import BADNESS, Difference, Outcome, worst
from rollbook.project.replay.weights import weight_difference
from rollbook.project.run.currency import flat
from rollbook.tables.artifacts import FOLDERS, is_table, read_json

SHOWN_FILES = 3
SHOWN_KEYS = 3


def other_labels(now: Mapping[str, str], then: Mapping[str, str]) -> list[str]:
    """Labels of artifacts whose content hash is not what it was then, those that were not there among them."""
    return [label for label in now if now[label] != then.get(label)]


def difference(then: Path, now: Path, kind: str, tolerance: float) -> Difference:
    """Compares two artifacts of one kind whose bytes differ.

    Args:
        then, now: files or folders.
        kind: of both, such as `rollouts`, `policies` or `metrics/score_rollouts`.
        tolerance: of numbers, see `rollbook.project.replay.verdict.Tolerance`.

    Returns:
        How they relate; `different` too where one cannot be read.
    """
    try:
        if kind in FOLDERS:
            return _folders(then, now, tolerance)
        if is_table(kind):
            return table_difference(then, now, kind, tolerance)
        return _numbers(then, now, tolerance)
    except ArtifactError as error:
        return Difference(Outcome.DIFFERENT, error.message, {"unreadable": error.message})


def _folders(then: Path, now: Path, tolerance: float) -> Difference:
    """File by file; what the folder says about itself decides nothing."""
    old, new = (
        {file.relative_to(folder).as_posix(): file for file in files_in(folder)}
        for folder in (then, now)
    )
    found: dict[str, Difference] = {}
    for name in sorted(old.keys() | new.keys()):
        if name not in old or name not in new:
            what = "is missing" if name in old else "is new"
            found[name] = Difference(Outcome.DIFFERENT, what)
        elif not _same_bytes(old[name], new[name]):
            found[name] = file_difference(name, old[name], new[name], tolerance)
    if not found:
        return Difference(Outcome.IDENTICAL)
    ordered = sorted(found, key=lambda name: (-BADNESS.index(found[name].outcome), name))
    text = "; ".join(f"{name}: {found[name].text}" for name in ordered[:SHOWN_FILES])
    if len(ordered) > SHOWN_FILES:
        text += f"; and {len(ordered) - SHOWN_FILES} more files"
    outcome = worst(each.outcome for each in found.values())
    facts = {name: found[name].facts or found[name].text for name in ordered}
    return Difference(outcome, text, facts, _farthest(found.values()))


def _farthest(found: Iterable[Difference]) -> float | None:
    """How far numbers of several files are apart; None if something else differs, or nothing."""
    apart = [each.apart for each in found if each.outcome is not Outcome.SAME_CONTENT]
    known = [each for each in apart if each is not None]
    return max(known) if known and len(known) == len(apart) else None


def file_difference(name: str, then: Path, now: Path, tolerance: float) -> Difference:
    """Compares two versions of a file of a folder, by what its name says it is.

    Raises:
        ArtifactError: if one cannot be read.
    """
    if name == FACTS_FILE:
        text = facts_that_differ(read_json(then), read_json(now))
        return Difference(Outcome.SAME_CONTENT, text)
    if name.endswith(".safetensors"):
        return weight_difference(then, now, tolerance)
    if name.endswith(".json"):
        return _numbers(then, now, tolerance)
    place = _first_other_byte(then, now)
    return Difference(Outcome.DIFFERENT, f"from byte {place} on", {"byte": place})


def _numbers(then: Path, now: Path, tolerance: float) -> Difference:
    """JSON by key: the first values that differ, by name."""
    old, new = flat(read_json(then)), flat(read_json(now))
    keys = [key for key in sorted(old.keys() | new.keys()) if not _same(old, new, key)]
    if not keys:
        text = "the same values, written otherwise"
        return Difference(Outcome.SAME_CONTENT, text, {"reasons": [text]})
    apart = {key: _apart(old.get(key), new.get(key)) for key in keys}
    beyond = [key for key, far in apart.items() if not tolerance or far > tolerance]
    shown = beyond or keys
    text = "; ".join(
        f"{key} {_said(new, key)} instead of {_said(old, key)}" for key in shown[:SHOWN_KEYS]
    )
    if len(keys) > 1:
        text += f"; {len(keys)} of {len(old.keys() | new.keys())} values differ"
    outcome = Outcome.DIFFERENT if beyond else Outcome.WITHIN_TOLERANCE
    values = {key: {"then": old.get(key), "now": new.get(key)} for key in keys}
    return Difference(outcome, text, {"values": values}, finite_or_none(max(apart.values())))


def _same(old: Mapping[str, Any], new: Mapping[str, Any], key: str) -> bool:
    return key in old and key in new and repr(old[key]) == repr(new[key])


def _apart(old: Any, new: Any) -> float:
    """Of two values, as a tolerance counts; infinite if one is no number."""
    if not all(isinstance(each, (int, float)) for each in (old, new)):
        return math.inf
    return float(number_distances(float(old), float(new)))


def _said(values: Mapping[str, Any], key: str) -> str:
    return repr(values[key]) if key in values else "nothing"


def _same_bytes(one: Path, other: Path) -> bool:
    return one.stat().st_size == other.stat().st_size and _first_other_byte(one, other) is None


def _first_other_byte(one: Path, other: Path, piece: int = 1 << 20) -> int | None:
    """Place of the first byte that differs, the end of the shorter file included; None if there is none."""
    begin = 0
    with one.open("rb") as old, other.open("rb") as new:
        while True:
            was, is_now = old.read(piece), new.read(piece)
            if was != is_now:
                pairs: Sequence[tuple[int, int]] = list(zip(was, is_now, strict=False))
                first = next((place for place, (a, b) in enumerate(pairs) if a != b), len(pairs))
                return begin + first
            if not was:
                return None
            begin += len(was)
