"""All iterations of a table as one data set: `pipeline.load`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
from polars.io.plugins import register_io_source

from pipeline.artifacts import (
    NAMED_TABLES,
    ROOT,
    TABLES,
    is_table,
    keys_of,
    path_of,
    read_columns,
    read_facts,
    refuse_other,
)
from pipeline.config import BASE_KEY, ITERATION_KEY, PARAMS_FILE
from pipeline.errors import ArtifactError, nearest
from pipeline.params import read_yaml
from pipeline.schemas.versions import newest, upgrade
from pipeline.sealed import read_sealed


def load(
    kind: str, join: Sequence[str] = (), iterations: Iterable[str] | None = None
) -> pl.DataFrame:
    """All iterations of a table as one polars data frame, with other tables joined to it.

    Args:
        kind: a table kind, such as `rollouts` or `rescores/<name>`.
        join: further kinds; joined by `rollout_id`, or by `iteration` and `prompt_id` where one side is about prompts.
            Columns that both sides have are taken from the left.
        iterations: keys wanted; default those of params.yaml and sealed ones that are on disk (without a params.yaml,
            all on disk): tables of iterations that were taken out of it stay on disk and belong to another run.

    Raises:
        ArtifactError: for an unknown kind, a missing or foreign table, or tables that have no rows in common.
            Contents are not hashed again, as stages do when they read.

    Example:
        >>> pipeline.load("rollouts", join=("prompts", "scores", "advantages"))
    """
    return scan(kind, join, iterations).collect()


def scan(
    kind: str, join: Sequence[str] = (), iterations: Iterable[str] | None = None
) -> pl.LazyFrame:
    """The same as `load`, not read yet: columns that are not selected are never loaded."""
    for name in (kind, *join):
        if not is_table(name):
            raise ArtifactError(f"there is no table {name!r}; {nearest(name, _allowed(name))}")
    wanted = sorted(iterations) if iterations is not None else _current(keys_of(kind))
    if not wanted:
        raise ArtifactError(f"{ROOT / kind}: holds no tables yet", _command(kind))

    def frame(name: str) -> pl.LazyFrame:
        paths = [
            path_of(name, key)
            for key in wanted
            if iterations is not None or path_of(name, key).exists()
        ]
        if missing := [str(path) for path in paths if not path.exists()]:
            raise ArtifactError(
                f"{', '.join(missing)}: not on disk", f"{_command(name)} or `dvc checkout`"
            )
        if not paths:
            raise ArtifactError(
                f"{ROOT / name}: holds no tables for {', '.join(wanted[:3])}…", _command(name)
            )
        return pl.concat([_scanned(path, name) for path in paths], how="diagonal_relaxed")

    left = frame(kind)
    for other in join:
        right = frame(other)
        mine, theirs = left.collect_schema().names(), right.collect_schema().names()
        on = (
            ["rollout_id"]
            if "rollout_id" in mine and "rollout_id" in theirs
            else [key for key in ("iteration", "prompt_id") if key in mine and key in theirs]
        )
        if not {"rollout_id", "prompt_id"} & set(on):
            raise ArtifactError(
                f"{kind} and {other} have neither rollouts nor prompts in common; load them apart"
            )
        new = [name for name in theirs if name not in mine]
        left = left.join(right.select([*on, *new]), on=on, how="left", maintain_order="left")
    return left


def _scanned(path: Path, kind: str) -> pl.LazyFrame:
    """One table, not read yet; one of an older version as today's."""
    facts = read_facts(path)
    refuse_other(facts, kind, path)
    if facts.version == newest(kind):
        return pl.scan_parquet(path)

    def rows(
        columns: list[str] | None, predicate: pl.Expr | None, count: int | None, _: int | None
    ) -> Iterator[pl.DataFrame]:
        table = pl.DataFrame(read_columns(path, kind, columns))
        table = table if count is None else table.head(count)
        yield table if predicate is None else table.filter(predicate)

    empty = upgrade(pq.read_schema(path).empty_table(), kind, facts.version)
    return register_io_source(rows, schema=pl.DataFrame(empty).schema)


def _allowed(kind: str) -> list[str]:
    """Kinds that can be asked for instead; where only a name is missing, those on disk that have one."""
    named = {
        family: [f"{family}/{folder.name}" for folder in (ROOT / family).glob("*/")]
        or [f"{family}/<name>"]
        for family in NAMED_TABLES
    }
    return named.get(kind) or [*TABLES, *itertools.chain(*named.values())]


def _command(kind: str) -> str:
    """What makes the tables of a kind."""
    family, _, name = kind.partition("/")
    if family not in NAMED_TABLES:
        return "run `dvc repro`"
    return f"name it under `rescores:` in params.yaml and run `rollbook rescore --stage {name}`"


def _current(keys: list[str]) -> list[str]:
    """Keys that params.yaml knows, sealed ones, and those that are no iterations."""
    if not PARAMS_FILE.exists():
        return keys
    known = {*(read_yaml().get("iterations") or {}), *read_sealed()}
    return [
        key for key in keys if key in known or key == BASE_KEY or not ITERATION_KEY.fullmatch(key)
    ]
