"""Imports that a stage program can do without, half a second in each of its runs."""

from __future__ import annotations

import contextlib
import importlib
import os
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
    # New lists: another thread may be going through the present one for an import of its own, and would skip a finder.
    sys.meta_path = [finder, *sys.meta_path]
    try:
        yield
    finally:
        sys.meta_path = [each for each in sys.meta_path if each is not finder]


def import_pandera() -> None:
    """Imports pandera and its backend without pandas, polars and hypothesis, which it uses where they are there."""
    with without("pandas", "polars", "hypothesis"):
        pandera: Any = importlib.import_module("pandera.pyarrow")
        pyarrow: Any = importlib.import_module("pyarrow")
        pandera.DataFrameSchema({}).validate(
            pyarrow.table({"x": pyarrow.nulls(1)})
        )  # loads the backend


def import_numpy_alone() -> None:
    """Imports NumPy without the threads that OpenBLAS starts for products of matrices.

    They take a tenth of a second of processor time; for a command that reads and prints.
    """
    name = "OPENBLAS_NUM_THREADS"  # read once, when the library is loaded
    before = os.environ.get(name)
    os.environ[name] = before or "1"
    try:
        importlib.import_module("numpy")
    finally:
        if before is None:
            del os.environ[name]


def settle_without_pandas() -> None:
    """Lets pyarrow find no pandas: it looks once, with the first list it converts, and keeps to what it found.

    Not for programs that may yet hand pandas objects to pyarrow.
    """
    with without("pandas"):
        importlib.import_module("pyarrow").array([0])
