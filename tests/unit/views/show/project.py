"""A project to look at, as training leaves it, in milliseconds: two iterations of two groups, and the base."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.showing import GROUP, ids_in, make_project
from rollbook.tables.artifacts import path_of, read_facts, write_table

KEYS = ("i0001", "i0002")
ROWS = 2 * GROUP


def make() -> None:
    """Writes it below the current directory."""
    make_project(KEYS, ROWS)


def names(key: str = "i0002") -> dict[str, str]:
    """Ids of one iteration: `rollout`, `group`, `prompt`, `evaluation` (a rollout), `evaluated` (its prompt)."""
    found = ids_in(key, ROWS)
    evaluation = found["rollout of an evaluation"][0]
    return {
        "rollout": found["rollout"][0],
        "group": found["group"][0],
        "prompt": found["prompt of one iteration"][0],
        "evaluation": evaluation,
        "evaluated": evaluation.split("/")[-2],
    }


def edit(kind: str, key: str, **columns: list[Any]) -> None:
    """Puts other columns into a stored table, the hash in it made to fit."""
    facts = read_facts(path_of(kind, key))
    table = pq.read_table(path_of(kind, key)).replace_schema_metadata(None)
    for name, values in columns.items():
        place = table.column_names.index(name)
        table = table.set_column(place, name, pa.array(values, table.schema.field(name).type))
    write_table(table, kind, key, facts.inputs, facts.settings)
