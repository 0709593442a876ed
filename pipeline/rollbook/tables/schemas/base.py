"""What a table schema is: a pandera schema for columns, plus named checks on values that span columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandera.pyarrow as pandera
import pyarrow as pa
import pyarrow.compute as pc
from pandera.errors import SchemaErrors

from rollbook.core.errors import SchemaError

RowCheck = Callable[[pa.Table], Any]
"""Takes the table, returns a boolean array: True where the row is right."""

MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
STEP_REWARDS = pa.list_(pa.struct([("end", pa.int32()), ("value", pa.float64())]))
TOKEN_IDS = pa.list_(pa.int32())
TOKEN_FLOATS = pa.list_(pa.float32())
TOKEN_FLAGS = pa.list_(pa.bool_())
SHOWN_ROWS = 3
"""Offending rows named in an error; never whole token lists."""


@dataclass(frozen=True)
class Column:
    """One column: Arrow type, whether null is allowed, whether it may be absent, and pandera checks of values."""

    dtype: pa.DataType
    nullable: bool = False
    required: bool = True
    unique: bool = False
    checks: tuple[pandera.Check, ...] = ()


@dataclass(frozen=True)
class TableSchema:
    """The shape of one kind of table.

    Attributes:
        kind: the artifact kind, such as `rollouts`.
        version: raised when the meaning of the table changes; readers refuse other versions.
        columns: fixed columns by name.
        key: the column that names a row.
        rows: named checks over whole rows; the name says what must hold, and which public fault it guards against.
        open: whether further columns are allowed (a source's own, a reward's own).
        patterns: types of further columns by regular expression.
    """

    kind: str
    version: int
    columns: Mapping[str, Column]
    key: str
    rows: Mapping[str, RowCheck] = field(default_factory=dict)
    open: bool = False
    patterns: Mapping[str, Column] = field(default_factory=dict)

    def validate(self, table: pa.Table, place: str) -> pa.Table:
        """Checks types and values. Returns the table, fixed columns first.

        Args:
            table: what was read or is to be written.
            place: named in errors, usually the path.

        Raises:
            SchemaError: with a compact list of what is wrong.
        """
        wrong = self._type_problems(table) or self._value_problems(table)
        if wrong:
            raise SchemaError(
                f"{place}: not a valid {self.kind} table\n"
                + "\n".join(f"  - {line}" for line in wrong)
            )
        names = [name for name in self.columns if name in table.column_names]
        return table.select(
            [*names, *(name for name in table.column_names if name not in self.columns)]
        )

    def empty(self) -> pa.Table:
        """A table of this kind without rows."""
        return pa.schema(
            [(name, column.dtype) for name, column in self.columns.items() if column.required]
        ).empty_table()

    def build(self, columns: Mapping[str, Any]) -> pa.Table:
        """Makes a table from plain lists, arrays or Arrow arrays, with this schema's types for the columns it knows."""
        arrays = {}
        for name, values in columns.items():
            dtype = self.columns[name].dtype if name in self.columns else None
            if isinstance(values, (pa.Array, pa.ChunkedArray)):
                arrays[name] = values.cast(dtype) if dtype is not None else values
            else:
                arrays[name] = pa.array(values, type=dtype)
        return pa.table(arrays)

    def _type_problems(self, table: pa.Table) -> list[str]:
        """Missing, unknown and wrongly typed columns. pandera compares coarse types, so these are exact."""
        lines = [
            f"column {name!r} is missing"
            for name, column in self.columns.items()
            if column.required and name not in table.column_names
        ]
        for name in table.column_names:
            got, column = table.schema.field(name).type, self._column(name)
            if column is None:
                lines += [] if self.open else [f"column {name!r} is not part of this kind of table"]
            elif got != column.dtype:
                lines.append(f"column {name!r} has type {got}, must be {column.dtype}")
        return lines

    def _value_problems(self, table: pa.Table) -> list[str]:
        if table.num_rows == 0:
            return []
        lines = []
        try:
            self._pandera(table).validate(table, lazy=True)
        except SchemaErrors as error:
            values: dict[str, list[str]] = {}
            for case in error.failure_cases.to_pylist():
                what = f"column {case['column']!r}: {case['check']}"
                values.setdefault(what, []).append(str(case["failure_case"])[:60])
            lines += [_failing(what, len(bad), table, bad) for what, bad in values.items()]
        for name, row_check in self.rows.items():
            right = pc.fill_null(row_check(table), False)
            if wrong := table.num_rows - pc.sum(right).as_py():
                ids = table.column(self.key).filter(pc.invert(right)).slice(0, SHOWN_ROWS)
                lines.append(_failing(name, wrong, table, ids.to_pylist()))
        return lines

    def _column(self, name: str) -> Column | None:
        if name in self.columns:
            return self.columns[name]
        return next(
            (column for pattern, column in self.patterns.items() if re.fullmatch(pattern, name)),
            None,
        )

    def _pandera(self, table: pa.Table) -> pandera.DataFrameSchema:
        known = {
            name: column
            for name in table.column_names
            if (column := self._column(name)) is not None
        }
        return pandera.DataFrameSchema(
            {
                name: pandera.Column(
                    nullable=column.nullable, unique=column.unique, checks=list(column.checks)
                )
                for name, column in known.items()
            }
        )


def _failing(what: str, count: int, table: pa.Table, examples: Sequence[object]) -> str:
    shown = ", ".join(map(str, examples[:SHOWN_ROWS]))
    return f"{what} fails in {count} of {table.num_rows} rows, such as {shown}"


def lists_equally_long(*names: str) -> RowCheck:
    """Row check: these list columns have the same length (nulls are left out)."""

    def check(table: pa.Table) -> Any:
        right = None
        columns = [pc.list_value_length(table.column(name)) for name in names]
        first = pc.coalesce(*columns)
        for lengths in columns:
            same = pc.or_kleene(pc.equal(lengths, first), pc.is_null(lengths))
            right = same if right is None else pc.and_(right, same)
        return right

    return check


def every_item(name: str, predicate: Callable[[pa.Array], Any]) -> RowCheck:
    """Row check: all items of a list column satisfy `predicate` (null lists pass, null items fail)."""

    def right(items: Any) -> Any:
        return pc.fill_null(predicate(items), False)

    def check(table: pa.Table) -> Any:
        column = table.column(name)
        if pc.all(right(pc.list_flatten(column)), min_count=0).as_py():
            return pa.repeat(True, table.num_rows)  # which list an item is in takes 8 bytes an item
        column = column.combine_chunks()
        parents, items = pc.list_parent_indices(column), pc.list_flatten(column)
        wrong = parents.filter(pc.invert(right(items)))
        return pc.invert(
            pc.is_in(pa.array(range(table.num_rows), pa.int64()), value_set=wrong.cast(pa.int64()))
        )

    return check


def finite(items: pa.Array) -> Any:
    """Neither NaN, infinite nor null."""
    return pc.is_finite(items)


def logprob(items: pa.Array) -> Any:
    """A finite number of at most 0 (to rounding)."""
    return pc.and_(pc.is_finite(items), pc.less_equal(items, 1e-4))
