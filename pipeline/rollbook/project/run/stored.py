"""Stored tables, opened for a look: a few columns of a few rows, wherever they stand.

Older versions are upgraded. Nothing is hashed or checked against a schema: stages and `rollbook verify` do that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rollbook.tables.artifacts import (
    METADATA_KEY,
    Facts,
    damaged,
    facts_in,
    no_column,
    read_facts,
    read_table,
    refuse_other,
)
from rollbook.tables.schemas.versions import column_names, stored_columns, upgrade

BATCH_ROWS = 1024
"""Rows decoded at a time on the way to those that are wanted."""


@dataclass(frozen=True)
class Places:
    """Where rows stand in a table.

    Attributes:
        masks: by row group, which of its rows.
    """

    masks: Mapping[int, pa.BooleanArray]

    @property
    def count(self) -> int:
        """Rows in all."""
        return sum(pc.sum(mask).as_py() for mask in self.masks.values())


class StoredTable:
    """One stored table.

    Args:
        kind: of the table.
        key: iteration, or `train` and `evaluation` for data.
        path: where it belongs; errors name it.
        file: where its bytes lie, if not there.

    Raises:
        ArtifactError: if it is missing, damaged, or says that it is another one.
    """

    def __init__(self, kind: str, key: str, path: Path, file: Path | None = None) -> None:
        self.path, self._bytes = path, file or path
        if not self._bytes.exists():
            read_facts(path)  # names the command that makes it
        try:
            self._file = pq.ParquetFile(self._bytes)
        except (pa.ArrowException, OSError) as error:
            raise damaged(path, error) from None
        self._schema: pa.Schema = self._file.schema_arrow
        self.facts: Facts = facts_in(self._schema, path)
        refuse_other(self.facts, kind, path, key)

    @property
    def names(self) -> list[str]:
        """Names of all columns."""
        return column_names(self.facts.kind, self.facts.version, self._schema.names)

    def is_nested(self, name: str) -> bool:
        """Whether a column holds lists or the like, and not one value a row."""
        return bool(pa.types.is_nested(self._read([], [name]).schema.field(name).type))

    @property
    def rows(self) -> int:
        """How many it has."""
        return int(self._file.metadata.num_rows)

    def column(self, name: str) -> pa.ChunkedArray:
        """One column as a whole."""
        return self._read(range(self._file.num_row_groups), [name]).column(name)

    def all(self, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows, or of all rows these columns."""
        return self._read(range(self._file.num_row_groups), columns or self.names)

    def checked(self) -> pa.Table:
        """All rows, once they are what the file says: of its schema, with the content hash that was recorded.

        Raises:
            ArtifactError: if the content changed after it was written.
            SchemaError: if columns or values break the schema.
        """
        return read_table(self.path, self.facts.kind, self._bytes)[0]

    def places(self, name: str, value: str, beside: Places | None = None) -> Places:
        """Where the column `name` is `value`. Only this column is read, and no row group that cannot hold it.

        Args:
            name: of a text column.
            value: looked for.
            beside: the same rows in another table. Stages write them at the same places: these are looked at first,
                and no others once there are as many.
        """
        near = list(beside.masks) if beside is not None else []
        numbers = range(self._file.num_row_groups)
        masks: dict[int, pa.BooleanArray] = {}
        for number in [*(each for each in near if each in numbers), *numbers]:
            if number in masks or not self._may_hold(number, name, value):
                continue
            values = self._read([number], [name]).column(name).combine_chunks()
            mask = pc.equal(values, value)
            if pc.any(mask, min_count=0).as_py():
                masks[number] = mask
            if beside is not None and Places(masks).count == beside.count:
                break
        return Places(dict(sorted(masks.items())))

    def at(self, places: Places, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows at these places, in their order.

        Args:
            places: of rows.
            columns: wanted; those that the table does not have are left out. None: all.
        """
        wanted = self.names if columns is None else [each for each in columns if each in self.names]
        found = [
            self._upgraded(pa.Table.from_batches([batch]), wanted)
            for number, mask in places.masks.items()
            for batch in self._batches(number, mask, self._stored(wanted))
        ]
        return pa.concat_tables(found) if found else self._read([], wanted)

    def where(self, name: str, value: str, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows whose column `name` is `value`; see `places` and `at`."""
        return self.at(self.places(name, value), columns)

    def _batches(
        self, group: int, mask: pa.BooleanArray, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a row group that `mask` names. What stands behind the last of them is not decoded."""
        last, start = pc.indices_nonzero(mask)[-1].as_py(), 0
        try:
            for batch in self._file.iter_batches(BATCH_ROWS, row_groups=[group], columns=columns):
                wanted = mask.slice(start, batch.num_rows)
                if pc.any(wanted).as_py():
                    yield batch.filter(wanted)
                start += batch.num_rows
                if start > last:
                    return
        except (pa.ArrowException, OSError) as error:
            raise damaged(self.path, error) from None

    def _read(self, groups: Sequence[int], columns: Sequence[str]) -> pa.Table:
        if missing := [name for name in columns if name not in self.names]:
            raise no_column(self.path, self.facts, missing[0])
        try:
            found = self._file.read_row_groups(list(groups), columns=self._stored(columns))
        except (pa.ArrowException, OSError) as error:
            raise damaged(self.path, error) from None
        return self._upgraded(found, columns)

    def _stored(self, columns: Sequence[str]) -> list[str]:
        """Columns of the file that these are made from."""
        return stored_columns(self.facts.kind, self.facts.version, columns)

    def _upgraded(self, table: pa.Table, columns: Sequence[str]) -> pa.Table:
        return upgrade(table, self.facts.kind, self.facts.version, columns)

    def _may_hold(self, group: int, name: str, value: str) -> bool:
        """Whether the smallest and the largest value of a row group leave room for this one."""
        place = self._schema.get_field_index(name)
        if self._stored([name]) != [name]:
            return True  # computed from other columns
        if place != 0 and any(
            pa.types.is_nested(self._schema.field(each).type) for each in range(place)
        ):
            return True  # columns of the file are then numbered otherwise
        found = self._file.metadata.row_group(group).column(place).statistics
        if found is None or not found.has_min_max:
            return True
        return bool(found.min <= value <= found.max)


@dataclass(frozen=True)
class TableFile:
    """A Parquet file as it stands, of whatever version and whoever wrote it: nothing is upgraded or refused.

    Attributes:
        rows: all of them, without metadata.
        writer: library that wrote it.
        said: what it says about itself, as JSON; empty if nothing.
    """

    rows: pa.Table
    writer: str
    said: bytes

    @classmethod
    def read(cls, file: Path) -> Self:
        """Reads a file.

        Raises:
            ArtifactError: if it cannot be read.
        """
        try:
            with pq.ParquetFile(file) as opened:
                rows = opened.read().replace_schema_metadata(None).combine_chunks()
                facts = (opened.metadata.metadata or {}).get(METADATA_KEY, b"")
                return cls(rows, opened.metadata.created_by, facts)
        except (pa.ArrowException, OSError) as error:
            raise damaged(file, error) from None


def row_of(table: pa.Table) -> dict[str, Any] | None:
    """The first row as plain values; None if there is none."""
    rows = table.slice(0, 1).to_pylist()
    return rows[0] if rows else None
