"""Reads the rows of JSONL, CSV and Parquet files, each with the place it stands at."""

from __future__ import annotations

import csv
import datetime
import decimal
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rollbook.core.errors import DataError, nearest

BATCH_ROWS = 4096
LARGEST_CELL = 2**31 - 1

Row = tuple[str, Mapping[str, Any]]
"""Place, such as `train.jsonl:7`, and the row by column name."""


def read_rows(file: Path) -> Iterator[Row]:
    """Yields (place, row) for every row of a file, whose ending says what it is.

    Raises:
        DataError: for an unknown ending or a malformed file, with the line.
    """
    reader = READERS.get(file.suffix.lower())
    if reader is None:
        raise DataError(
            f"{file}: unknown kind of file {file.suffix!r}; {nearest(file.suffix, READERS)}"
        )
    return reader(file)


def jsonl_rows(file: Path) -> Iterator[Row]:
    """One JSON object per line; blank lines are skipped and counted as lines."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            place = f"{file}:{number}"
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                if not text:
                    continue
                row = json.loads(text)
                if "\\ud" in text.lower():
                    json.dumps(row, ensure_ascii=False).encode()
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{place}: not UTF-8 ({error.reason} at byte {error.start})"
                ) from None
            except UnicodeEncodeError:
                raise DataError(
                    f"{place}: holds half a surrogate pair (a broken \\ud… escape)"
                ) from None
            except ValueError as error:
                raise DataError(f"{place}: not valid JSON: {error}") from None
            if not isinstance(row, dict):
                raise DataError(f"{place}: must be a JSON object, is {type(row).__name__}")
            yield place, row


def csv_rows(file: Path) -> Iterator[Row]:
    """Rows under a line of column names. All cells are text, so that `007` stays `007`; an empty cell is null."""
    csv.field_size_limit(LARGEST_CELL)
    delimiter = "\t" if file.suffix.lower() == ".tsv" else ","
    with file.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.reader(stream, delimiter=delimiter, strict=True)
        names: list[str] | None = None
        try:
            for cells in reader:
                place = f"{file}:{reader.line_num}"
                if not cells:
                    continue
                if names is None:
                    names = _header(cells, place)
                elif len(cells) != len(names):
                    raise DataError(f"{place}: {len(cells)} cells, the header has {len(names)}")
                else:
                    yield (
                        place,
                        {name: cell or None for name, cell in zip(names, cells, strict=True)},
                    )
        except csv.Error as error:
            raise DataError(f"{file}:{reader.line_num}: not valid CSV: {error}") from None
        except UnicodeDecodeError as error:
            raise DataError(
                f"{file}: not UTF-8 ({error.reason} after line {reader.line_num})"
            ) from None


def _header(cells: list[str], place: str) -> list[str]:
    names = [cell.strip() for cell in cells]
    if twice := [name for name in names if names.count(name) > 1]:
        raise DataError(f"{place}: two columns are called {twice[0]!r}")
    return names


def parquet_rows(file: Path) -> Iterator[Row]:
    """Rows of a Parquet file; dates and decimals become text."""
    try:
        with pq.ParquetFile(file) as parquet:
            first = 1
            for batch in parquet.iter_batches(BATCH_ROWS):
                yield from table_rows(pa.Table.from_batches([batch]), str(file), first)
                first += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{file}: not a valid Parquet file: {' '.join(str(error).split())}"
        ) from None


def table_rows(table: pa.Table, place: str, first: int) -> Iterator[Row]:
    """Rows of an Arrow table.

    Args:
        place: where the table comes from.
        first: number of its first row.
    """
    for number, row in enumerate(table.to_pylist(), start=first):
        yield f"{place}, row {number}", row


def plain(value: Any, place: str) -> Any:
    """A cell as JSON values: dates, times and decimals become text.

    Raises:
        DataError: for bytes and other things that no column can keep.
    """
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item, place) for key, item in value.items()} or None
    if isinstance(value, (list, tuple)):
        return [plain(item, place) for item in value]
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (decimal.Decimal, datetime.timedelta)):
        return str(value)
    raise DataError(
        f"{place}: holds {type(value).__name__}, which is no JSON value",
        "name the further columns to keep, as `columns: [...]`",
    )


READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": jsonl_rows,
    ".csv": csv_rows,
    ".tsv": csv_rows,
    ".parquet": parquet_rows,
}
