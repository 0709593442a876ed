"""Two versions of a table: whether they say the same, and if not, the first value that differs and how many do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rollbook.core.hashing import content_hash, in_one
from rollbook.project.replay.distances import finite_or_none, number_distances
from rollbook.project.replay.verdict import Difference, Outcome
from rollbook.project.run.stored import TableFile
from rollbook.tables.artifacts import schema_of

SHOWN_CHARACTERS = 60
SAME = -1.0
"""Less than any distance: two zeros of other signs are 0 apart, and other bits."""


def table_difference(then: Path, now: Path, kind: str, tolerance: float) -> Difference:
    """Compares two Parquet files of one kind whose bytes differ.

    Args:
        then, now: the files.
        kind: of table; decides which column names a row.
        tolerance: of numbers, see `rollbook.project.replay.verdict.Tolerance`.

    Raises:
        ArtifactError: if one cannot be read.
    """
    was, is_now = TableFile.read(then), TableFile.read(now)
    old, new = was.rows, is_now.rows
    if content_hash(old) == content_hash(new):
        return _other_bytes(was, is_now)
    if shape := _other_shape(old, new):
        return Difference(Outcome.DIFFERENT, shape, {"shape": shape})
    key = schema_of(kind).key
    rows = _other_rows(old, new, key)
    return rows or _other_values(old, new, key, tolerance)


def _other_bytes(old: TableFile, new: TableFile) -> Difference:
    """Why two files of the same content have other bytes."""
    reasons = []
    if old.writer != new.writer:
        reasons.append(f"Parquet writer {old.writer}, now {new.writer}")
    if old.said != new.said:
        reasons.append(facts_that_differ(*(_json(each.said) for each in (old, new))))
    text = "; ".join(reasons) or "other encoding, compression or row groups"
    return Difference(Outcome.SAME_CONTENT, text, {"reasons": reasons})


def facts_that_differ(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Which of the facts that an artifact states about itself are others, in words."""
    names = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    words = {"settings": "digest of settings and code"}
    return f"its metadata has another {', '.join(words.get(name, name) for name in names)}"


def _json(said: bytes) -> Mapping[str, Any]:
    import json

    content = json.loads(said or b"{}")
    return content if isinstance(content, dict) else {}


def _other_shape(old: pa.Table, new: pa.Table) -> str:
    """Columns or types that differ, in words; empty if none do."""
    lacking = [name for name in old.column_names if name not in new.column_names]
    added = [name for name in new.column_names if name not in old.column_names]
    said = [f"column {name!r} is missing" for name in lacking]
    said += [f"column {name!r} is new" for name in added]
    for name in old.column_names:
        if name in new.column_names:
            was, is_now = old.schema.field(name).type, new.schema.field(name).type
            said += [f"column {name!r} is {is_now} instead of {was}"] if was != is_now else []
    if not said and old.column_names != new.column_names:
        return "the same columns, in another order"
    return "; ".join(said)


def _other_rows(old: pa.Table, new: pa.Table, key: str) -> Difference | None:
    """The first row that is another one, if the tables do not have the same rows in the same order."""
    was, is_now = old[key].to_pylist(), new[key].to_pylist()
    if was == is_now:
        return None
    first = next(
        (place for place, (a, b) in enumerate(zip(was, is_now, strict=False)) if a != b),
        min(len(was), len(is_now)),
    )
    here, there = (str(ids[first]) if first < len(ids) else "nothing" for ids in (was, is_now))
    only_old, only_new = len(set(was) - set(is_now)), len(set(is_now) - set(was))
    how = (
        f"{only_old} rows are missing, {only_new} are new"
        if only_old or only_new
        else "the same rows, in another order"
        if len(was) == len(is_now)
        else f"{len(is_now)} rows instead of {len(was)}"
    )
    facts = {"row": first, "then": here, "now": there, "missing": only_old}
    return Difference(
        Outcome.DIFFERENT,
        f"row {first} is {there} instead of {here}; {how}",
        {**facts, "new": only_new},
    )


def _other_values(old: pa.Table, new: pa.Table, key: str, tolerance: float) -> Difference:
    """The first row, in order, that says something else; there is none if only NaN are stored in other bits."""
    apart = {name: _apart(in_one(old[name]), in_one(new[name])) for name in new.column_names}
    exact = {name: far > SAME for name, far in apart.items()}
    beyond = {name: far > tolerance for name, far in apart.items()} if tolerance else exact
    if not any(mask.any() for mask in exact.values()):
        text = "the same values, NaN in other bits"
        return Difference(Outcome.SAME_CONTENT, text, {"reasons": [text]})
    outcome = (
        Outcome.DIFFERENT
        if any(mask.any() for mask in beyond.values())
        else Outcome.WITHIN_TOLERANCE
    )
    masks = beyond if outcome is Outcome.DIFFERENT else exact
    row, column = min((int(mask.argmax()), place) for place, mask in _some(masks, new))
    name = new.column_names[column]
    was, is_now, where = _pair(old[name][row].as_py(), new[name][row].as_py())
    cells = {each: int(mask.sum()) for each, mask in exact.items() if mask.any()}
    rows = int(np.logical_or.reduce(list(exact.values())).sum())
    identity = str(new[key][row].as_py())
    counted = ", ".join(f"{each} {count}" for each, count in cells.items())
    text = (
        f"{key} {identity}, {name}{where}: {is_now} instead of {was}; "
        f"{rows} of {new.num_rows} rows differ, values: {counted}"
    )
    facts = {"row_id": identity, "row": row, "column": name + where, "then": was, "now": is_now}
    largest = {each: finite_or_none(apart[each].max()) for each in cells}
    known = [far for far in largest.values() if far is not None]
    return Difference(
        outcome,
        text,
        {**facts, "rows": rows, "of": new.num_rows, "cells": cells, "apart": largest},
        max(known) if len(known) == len(largest) else None,
    )


def _some(
    masks: Mapping[str, NDArray[np.bool_]], table: pa.Table
) -> list[tuple[int, NDArray[np.bool_]]]:
    """Columns in which something differs, by their place in the table."""
    return [(table.column_names.index(name), mask) for name, mask in masks.items() if mask.any()]


def _apart(old: pa.Array, new: pa.Array) -> NDArray[np.float64]:
    """How far apart the values of each row are, as a tolerance counts, nulls and items of lists included.

    Returns:
        `SAME` for the same bits, NaN among them; infinity where something else than numbers differs.
    """
    empty, other = _nulls(old), _nulls(old) != _nulls(new)
    apart = np.full(len(old), SAME)
    if pa.types.is_list(old.type) or pa.types.is_large_list(old.type):
        lengths, others = (
            pc.fill_null(pc.list_value_length(each), 0).to_numpy(zero_copy_only=False)
            for each in (old, new)
        )
        other |= lengths != others
        rows = np.flatnonzero(~other & ~empty)
        a, b = (pc.list_flatten(each.take(pa.array(rows))) for each in (old, new))
        np.maximum.at(apart, np.repeat(rows, lengths[rows]), _apart(a, b))
    elif pa.types.is_struct(old.type):
        for place in range(old.type.num_fields):
            a, b = (pc.struct_field(each, [place]) for each in (old, new))
            apart = np.maximum(apart, _apart(a, b))
    elif pa.types.is_floating(old.type):
        was, is_now = (
            pc.fill_null(each, 0).to_numpy(zero_copy_only=False).astype(np.float64)
            for each in (old, new)
        )
        apart = number_distances(was, is_now)
        apart[_same_number(was, is_now)] = SAME
    elif not pa.types.is_null(old.type):
        other |= pc.fill_null(pc.not_equal(old, new), False).to_numpy(zero_copy_only=False)
    apart[other] = np.inf
    return apart


def _nulls(array: pa.Array) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    return found


def _same_number(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Where numbers have the same bits, or both are NaN."""
    return (a.view(np.int64) == b.view(np.int64)) | (np.isnan(a) & np.isnan(b))


def _pair(old: Any, new: Any, where: str = "") -> tuple[str, str, str]:
    """Both values, and of lists their first items that differ, with the place in brackets."""
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for place, (a, b) in enumerate(zip(old, new, strict=True)):
            if repr(a) != repr(b):
                return _pair(a, b, f"{where}[{place}]")
    if isinstance(old, list) and isinstance(new, list):
        return f"{len(old)} items", f"{len(new)} items", where
    return _shown(old), _shown(new), where


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
