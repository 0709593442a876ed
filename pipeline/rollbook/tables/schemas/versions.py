"""Versions of stored files, and how a file of an older version becomes one of today's, in memory.

A file is never rewritten: its bytes, its content hash and the version it records stay as they are, so nothing that was
made of it is stale. A reader checks the hash, then applies one upgrade per version. What an older file cannot know is
null, or a value that held for every file of that version.

Apart from the schemas: looks at a few columns read it, and importing pandera takes longer than such a look.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

TOKEN_FLOATS = pa.list_(pa.float32())


@dataclass(frozen=True)
class Derived:
    """A column of a version, computed from a table of the version before.

    Attributes:
        values: takes a table that has at least the columns `needs`; returns one value per row.
        needs: columns of the version before.
    """

    values: Callable[[pa.Table], pa.Array | pa.ChunkedArray]
    needs: tuple[str, ...] = ()


def unknown(dtype: pa.DataType) -> Derived:
    """Null in every row."""
    return Derived(lambda table: pa.nulls(table.num_rows, dtype))


def constant(value: bool | int | float | str) -> Derived:
    """The same value in every row."""
    return Derived(lambda table: pa.repeat(pa.scalar(value), table.num_rows))


@dataclass(frozen=True)
class Upgrade:
    """From one version of a table to the next. Rows stay the same, and in the same order.

    Attributes:
        columns: new or changed columns; all others are taken over.
        dropped: columns that the next version does not have.
    """

    columns: Mapping[str, Derived]
    dropped: tuple[str, ...] = ()

    def __call__(self, table: pa.Table, wanted: Sequence[str] | None = None) -> pa.Table:
        """The table in the next version; of its columns those `wanted`, None for all."""
        made = {
            name: column.values(table)
            for name, column in self.columns.items()
            if wanted is None or name in wanted
        }
        if wanted is None:
            wanted = self.names(table.column_names)
        for name, values in made.items():
            if name in table.column_names:
                table = table.set_column(table.column_names.index(name), name, values)
            else:
                table = table.append_column(name, values)
        return table.select(wanted)

    def names(self, stored: Sequence[str]) -> list[str]:
        """Columns of the next version, of a table that has the columns `stored`."""
        return list(dict.fromkeys([*(n for n in stored if n not in self.dropped), *self.columns]))

    def needs(self, wanted: Sequence[str]) -> list[str]:
        """Columns of the version before that these columns of the next one are made from."""
        before = (self.columns[n].needs if n in self.columns else (n,) for n in wanted)
        return list(dict.fromkeys(name for names in before for name in names))


UPGRADES: Mapping[str, Mapping[int, Upgrade]] = {
    "rollouts": {1: Upgrade({"greedy": constant(False)})},  # version 1 had sampled rollouts only
    "advantages": {1: Upgrade({"token_returns": unknown(TOKEN_FLOATS)})},
    "optimizer_steps": {
        1: Upgrade({name: unknown(pa.float64()) for name in ("kl_coef", "entropy_coef")}),
        2: Upgrade(
            {
                name: unknown(pa.float64())
                for name in ("value_loss", "value_clip", "critic_grad_norm")
            }
        ),
    },
    "updates": {1: Upgrade({"rollout_weight": unknown(pa.float64())})},
}
"""By kind of table and version: the upgrade to the version after it. A kind that is not named has version 1 only."""

JSON_UPGRADES: Mapping[str, Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "run_info": {},
    "sealed": {},
}
"""By kind of JSON file and version: what makes of its content that of the version after it."""


def newest(kind: str) -> int:
    """The version of a kind of table or JSON file that this Rollbook writes; it reads this one and those before."""
    return 1 + len(_upgrades(kind))


def refusal(kind: str, version: object) -> tuple[str, str] | None:
    """Why a file of this version cannot be read, and what to do about it; None if it can."""
    if isinstance(version, int) and 1 <= version <= newest(kind):
        return None
    what = f"of version {version}, this Rollbook reads versions up to {newest(kind)}"
    if isinstance(version, int) and version > newest(kind):
        return what, "a newer Rollbook wrote it: upgrade Rollbook"
    return what, "no Rollbook writes this version: read it with the program that wrote it"


def upgrade(
    table: pa.Table, kind: str, version: int, columns: Sequence[str] | None = None
) -> pa.Table:
    """A table of an older version as one of today's.

    Args:
        table: as it is stored, or of the stored columns those that `stored_columns` names.
        kind: of table.
        version: that the file records.
        columns: wanted, of today's version. None: all that a whole table has.
    """
    for number in range(version, newest(kind)):
        wanted = None if columns is None else stored_columns(kind, number + 1, columns)
        table = _upgrades(kind)[number](table, wanted)
    return table if columns is None else table.select(columns)


def stored_columns(kind: str, version: int, columns: Sequence[str]) -> list[str]:
    """Columns of a file of this version from which `columns` of today's version are made; may be none at all."""
    for number in reversed(range(version, newest(kind))):
        columns = _upgrades(kind)[number].needs(columns)
    return list(columns)


def column_names(kind: str, version: int, stored: Sequence[str]) -> list[str]:
    """Columns that a file of this version has once it is upgraded."""
    for number in range(version, newest(kind)):
        stored = _upgrades(kind)[number].names(stored)
    return list(stored)


def upgrade_json(content: dict[str, Any], kind: str, version: int) -> dict[str, Any]:
    """The content of a JSON file of an older version as that of today's."""
    for number in range(version, newest(kind)):
        content = _upgrades(kind)[number](content)
    return content


def _upgrades(kind: str) -> Mapping[int, Any]:
    family = kind.partition("/")[0]
    return UPGRADES.get(family) or JSON_UPGRADES.get(family) or {}
