"""Imports that a stage program can do without, half a second in each of its runs."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from importlib.abc import MetaPathFinder
from typing import Any


class _Absent(MetaPathFinder):
    """Makes packages look as if they were not installed."""

    def __init__(self, packages: tuple[str, ...]) -> None:
        self.packages = packages

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:  # noqa: ARG002
        if fullname.partition(".")[0] in self.packages:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


@contextlib.contextmanager
def without(*packages: str) -> Iterator[None]:
    """Imports inside the block find these packages missing, unless they are loaded already."""
    finder = _Absent(packages)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def import_pandera(pandas_later: bool) -> None:
    """Imports pandera and its backend without pandas, polars and hypothesis, which it uses where they are there.

    Args:
        pandas_later: whether this process may yet hand pandas objects to pyarrow. pyarrow looks for
            pandas once, with the first list it converts, and keeps to what it found.
    """
    with without("pandas", "polars", "hypothesis"):
        pandera: Any = importlib.import_module("pandera.pyarrow")
        pyarrow: Any = importlib.import_module("pyarrow")
        first: Any = pyarrow.table({"x": pyarrow.nulls(1) if pandas_later else pyarrow.array([0])})
        pandera.DataFrameSchema({}).validate(first)  # loads the backend
