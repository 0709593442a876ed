"""Rollbook's library: `pipeline.open` opens a run to look at it, `pipeline.load` reads its tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl

    from pipeline.run.run import open_run as open

__all__ = ["load", "open"]


def load(
    kind: str, join: Sequence[str] = (), iterations: Iterable[str] | None = None
) -> pl.DataFrame:
    """All iterations of a table of the run in the current folder; see `pipeline.run.run.Run.scan`.

    Example:
        >>> pipeline.load("rollouts", join=("prompts", "scores", "advantages"))
    """
    from pipeline.run.run import Run

    return Run().load(kind, join, iterations)


def __getattr__(name: str) -> Any:
    if name == "open":
        from pipeline.run.run import open_run

        return open_run
    raise AttributeError(f"module 'pipeline' has no attribute {name!r}")
