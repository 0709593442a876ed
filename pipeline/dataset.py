"""All iterations of a table as one data set: `pipeline.load`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import polars as pl

from pipeline.artifacts import ROOT, TABLES, keys_of, path_of
from pipeline.errors import ArtifactError, nearest


def load(
    kind: str, join: Sequence[str] = (), iterations: Iterable[str] | None = None
) -> pl.DataFrame:
    """All iterations of a table as one polars data frame, with other tables joined to it.

    Args:
        kind: a table kind, such as `rollouts`.
        join: further kinds; joined by `rollout_id`, or by `iteration` and `prompt_id` where one side is about prompts.
            Columns that both sides have are taken from the left.
        iterations: keys wanted; default all that are on disk.

    Raises:
        ArtifactError: for an unknown kind or a missing table.

    Example:
        >>> pipeline.load("rollouts", join=("prompts", "scores", "advantages"))
    """
    return scan(kind, join, iterations).collect()


def scan(
    kind: str, join: Sequence[str] = (), iterations: Iterable[str] | None = None
) -> pl.LazyFrame:
    """The same as `load`, not read yet: columns that are not selected are never loaded."""
    for name in (kind, *join):
        if name not in TABLES:
            raise ArtifactError(f"there is no table {name!r}; {nearest(name, TABLES)}")
    wanted = sorted(iterations) if iterations is not None else keys_of(kind)
    if not wanted:
        raise ArtifactError(f"{ROOT / kind}: holds no tables yet", "run `dvc repro`")

    def frame(name: str) -> pl.LazyFrame:
        paths = [
            path_of(name, key)
            for key in wanted
            if iterations is not None or path_of(name, key).exists()
        ]
        if missing := [str(path) for path in paths if not path.exists()]:
            raise ArtifactError(
                f"{', '.join(missing)}: not on disk", "run `dvc repro` or `dvc checkout`"
            )
        if not paths:
            raise ArtifactError(
                f"{ROOT / name}: holds no tables for {', '.join(wanted[:3])}…", "run `dvc repro`"
            )
        return pl.concat([pl.scan_parquet(path) for path in paths], how="diagonal_relaxed")

    left = frame(kind)
    for other in join:
        right = frame(other)
        mine, theirs = left.collect_schema().names(), right.collect_schema().names()
        on = (
            ["rollout_id"]
            if "rollout_id" in mine and "rollout_id" in theirs
            else [key for key in ("iteration", "prompt_id") if key in mine and key in theirs]
        )
        new = [name for name in theirs if name not in mine]
        left = left.join(right.select([*on, *new]), on=on, how="left", maintain_order="left")
    return left
