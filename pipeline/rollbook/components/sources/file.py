"""Prompts from your own files: JSONL, CSV, TSV or Parquet, told by their ending.

{name: file, files: data/train.jsonl}
{name: file, files: ["data/*.parquet"], prompt: question, reference_answer: answer, columns: [level]}
{name: file, files: data/all.csv, evaluation_share: 0.1}      # on both sides: one file, split
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from rollbook.components.sources.base import Role, Source
from rollbook.components.sources.columns import Columns, Record
from rollbook.components.sources.reading import READERS, read_rows
from rollbook.core.errors import DataError, nearest

NAMES_SHOWN = 20
WILDCARDS = "*?["


class File(Columns, Source):
    """One prompt per row of one or more files, in the order of the files and rows."""

    files: Annotated[
        list[str],
        BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
        Field(min_length=1),
    ]
    """A path, a pattern such as `data/*.jsonl`, or a list of these, relative to the project."""

    def data_files(self) -> list[str]:
        return [str(path) for name in self.files for path in _matches(name)]

    def records(self, role: Role, split_seed: int) -> Iterator[dict[str, Any]]:
        yield from self.selected(self._all_records(), role, split_seed)

    def _all_records(self) -> Iterator[Record]:
        count = 0
        for name in self.files:
            for file in _existing(name):
                for record in self.mapped(read_rows(file)):
                    count += 1
                    yield record
        if not count:
            raise DataError(f"{', '.join(self.files)}: holds no prompts (an empty data set)")


def _matches(name: str) -> list[Path]:
    """The files a path or pattern stands for, sorted; a plain path stands for itself, there or not."""
    if not any(mark in name for mark in WILDCARDS) or Path(name).exists():
        return [Path(name)]
    pattern = Path(name)
    found = Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor)))
    return sorted(path for path in found if path.is_file() and not path.name.startswith("."))


def _existing(name: str) -> list[Path]:
    files = _matches(name)
    if not files:
        raise DataError(f"{name}: no file matches this pattern")
    for file in files:
        if file.is_dir():
            raise DataError(f"{file}: is a folder", f"name its files, such as `{file}/*.jsonl`")
        if not file.exists():
            raise DataError(f"{file}: no such file; {_what_is_there(file)}")
    return files


def _what_is_there(file: Path) -> str:
    folder = file.parent
    if not folder.is_dir():
        return f"the folder {folder} does not exist either"
    names = sorted(str(path) for path in folder.iterdir() if path.suffix.lower() in READERS)
    return nearest(file, names[:NAMES_SHOWN]) if names else f"{folder} holds no data files"
