"""Prompts from a data set on the Hugging Face hub, at a pinned revision, or from a folder laid out like one.

{name: hub, dataset: openai/gsm8k, subset: main, split: train, revision: e53f048856ff4f594e959d75785d2c2d37b678ee}
{name: hub, dataset: data/my_set, split: test}
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import model_validator

from rollbook.components.revisions import refuse_unpinned
from rollbook.components.sources.base import Role, Source
from rollbook.components.sources.columns import Columns
from rollbook.components.sources.reading import BATCH_ROWS, Row, table_rows
from rollbook.core.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset


class Hub(Columns, Source):
    """One prompt per row of a split, in its order."""

    dataset: str
    """Hub id, or a folder laid out as a hub data set."""
    subset: str | None = None
    """Name of the configuration, where the data set has several."""
    split: str = "train"
    """Name of the split, or a slice such as `train[:1000]`."""
    revision: str | None = None
    """Commit hash of 40 hex digits; a branch such as `main` could change under a run. A folder needs none."""

    @model_validator(mode="after")
    def _is_pinned(self) -> Hub:
        if not self._is_folder:
            refuse_unpinned(self.dataset, self.revision, "data set")
        return self

    @property
    def _is_folder(self) -> bool:
        return Path(self.dataset).is_dir()

    def data_files(self) -> list[str]:
        if not self._is_folder:
            return []
        folder = Path(self.dataset)
        return [
            str(path)
            for path in sorted(folder.rglob("*"))
            if path.is_file()
            and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        ]

    def records(self, role: Role, split_seed: int) -> Iterator[dict[str, Any]]:
        yield from self.selected(self.mapped(self._rows()), role, split_seed)

    def _rows(self) -> Iterator[Row]:
        data = self._loaded()
        if not len(data):
            raise DataError(
                f"{self.dataset}, split {self.split!r}: holds no prompts (an empty data set)"
            )
        batches = data.with_format("arrow").iter(batch_size=BATCH_ROWS)
        for number, table in enumerate(batches):
            yield from table_rows(table, f"{self.dataset}[{self.split}]", number * BATCH_ROWS)

    def _loaded(self) -> Dataset:
        try:
            from datasets import disable_progress_bars, load_dataset
        except ImportError:
            raise DataError(
                "the source `hub` needs the package datasets", "pip install 'rollbook[train]'"
            ) from None
        if not sys.stderr.isatty():
            disable_progress_bars()
        try:
            return load_dataset(self.dataset, self.subset, split=self.split, revision=self.revision)
        except Exception as error:
            reason = " ".join(str(error).split())
            raise DataError(
                f"{self.dataset} (subset {self.subset}, split {self.split}, revision {self.revision}) "
                f"cannot be loaded: {type(error).__name__}: {reason[:400]}"
            ) from error
