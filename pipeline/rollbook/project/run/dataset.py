"""All iterations of a table as one polars data frame, other tables joined to it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
from polars.io.plugins import register_io_source

from rollbook.core.errors import ArtifactError, nearest
from rollbook.core.ids import BASE_KEY, ITERATION_KEY, PARAMS_FILE
from rollbook.core.yaml import read_yaml
from rollbook.project.run.store import Store
from rollbook.tables.artifacts import (
    NAMED_TABLES,
    ROOT,
    TABLES,
    is_table,
    read_columns,
    read_facts,
    refuse_other,
)
from rollbook.tables.schemas.versions import newest, upgrade


def scan(
    run: Store, kind: str, join: Sequence[str] = (), iterations: Iterable[str] | None = None
) -> pl.LazyFrame:
    """See `rollbook.project.run.run.Run.scan`. Columns that are not selected are never read; contents are not hashed
    again."""
    for name in (kind, *join):
        if not is_table(name):
            raise ArtifactError(f"there is no table {name!r}; {nearest(name, _allowed(run, name))}")
    wanted = sorted(iterations) if iterations is not None else _current(run, run.keys_with(kind))
    if not wanted:
        raise ArtifactError(f"{ROOT / kind}: holds no tables yet", _command(kind))

    def frame(name: str) -> pl.LazyFrame:
        keys = wanted if iterations is not None else [key for key in wanted if run.has(name, key)]
        if missing := [str(run.place(name, key)) for key in keys if not run.has(name, key)]:
            raise ArtifactError(
                f"{', '.join(missing)}: not on disk", f"{_command(name)} or `dvc checkout`"
            )
        if not keys:
            raise ArtifactError(
                f"{ROOT / name}: holds no tables for {', '.join(wanted[:3])}…", _command(name)
            )
        return pl.concat(
            [_scanned(run.place(name, key), name) for key in keys], how="diagonal_relaxed"
        )

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


def _allowed(run: Store, kind: str) -> list[str]:
    """Kinds that can be asked for instead; where only a name is missing, those on disk that have one."""
    named = {
        family: [f"{family}/{folder.name}" for folder in (run.root / ROOT / family).glob("*/")]
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


def _current(run: Store, keys: list[str]) -> list[str]:
    """Keys that params.yaml knows, sealed ones, and those that are no iterations; without a params.yaml all.

    Raises:
        ConfigError: if params.yaml is no YAML.
    """
    if not (run.root / PARAMS_FILE).exists():
        return keys
    if not run.configured:
        read_yaml(run.root / PARAMS_FILE)  # names the problem where there is one
    known = {BASE_KEY, *run.keys}
    return [key for key in keys if key in known or not ITERATION_KEY.fullmatch(key)]
