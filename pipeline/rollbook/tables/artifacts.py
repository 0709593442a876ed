"""Where artifacts live and how they are written and read: typed, hashed, atomic, the same bytes for the same content.

artifacts/<kind>/<key>.parquet            tables (schemas in pipeline/rollbook/tables/schemas)
artifacts/rescores/<name>/<key>.parquet   tables of a re-score, with its numbers beside them (<key>.json)
artifacts/<kind>/<key>/                   policies, optimizers, values
artifacts/metrics/<stage>/<key>.json      flat, deterministic numbers
artifacts/run_info/<stage>/<key>.json     what varies from run to run
"""

from __future__ import annotations

import errno
import importlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from rollbook.core.atomic import TEMPORARY_PREFIX, replacing, sync
from rollbook.core.errors import ArtifactError, RollbookError, VersionError
from rollbook.core.hashing import FACTS_FILE, content_hash, files_in, folder_digest, short
from rollbook.core.ids import order_of
from rollbook.tables.schemas.versions import (
    column_names,
    refusal,
    stored_columns,
    upgrade,
)

if TYPE_CHECKING:
    from rollbook.tables.schemas.base import TableSchema

ROOT = Path("artifacts")
TABLES = (
    "data",
    "prompts",
    "rollouts",
    "scores",
    "logprobs",
    "advantages",
    "pairs",
    "updates",
    "optimizer_steps",
    "evaluations",
    "history",
)
NAMED_TABLES = ("rescores",)
"""Tables of which an iteration has one per name; their kind is `rescores/<name>`."""
FOLDERS = ("policies", "optimizers", "values")
METADATA_KEY = b"rollbook"
ROW_GROUP_ROWS = 16_384

FolderWriter = Callable[[Path], None]
"""Fills an empty folder."""
RESTORE = "`rollbook verify` says what is damaged, and the commands that restore it"
"""Outputs are links into DVC's cache: both may be damaged, and `dvc checkout` takes the cache for whole."""


@dataclass(frozen=True)
class Facts:
    """What an artifact says about itself: deterministic, without time, host or commit.

    Attributes:
        kind: artifact kind.
        version: schema version that its bytes have (0 for folders).
        key: iteration, or `train` and `evaluation` for data.
        content_hash: logical hash of a table, digest of a folder's files; does not depend on the writer.
        inputs: content hash of every input by name.
        settings: digest of the settings and code that made it.
    """

    kind: str
    version: int
    key: str
    content_hash: str
    inputs: Mapping[str, str] = field(default_factory=dict)
    settings: str = ""

    def is_made_of(self, source: Facts) -> bool:
        """Whether it was made from this, and not from what lay there before; what names no such input is."""
        return self.inputs.get(source.kind) in (None, source.content_hash)


def path_of(kind: str, key: str) -> Path:
    """Path of an artifact, relative to the project.

    Args:
        kind: a table or folder kind, `rescores/<name>`, `metrics/<stage>` or `run_info/<stage>`.
        key: iteration key, or `train` / `evaluation` for data.
    """
    if kind in FOLDERS:
        return ROOT / kind / key
    return ROOT / kind / f"{key}.{'parquet' if is_table(kind) else 'json'}"


def is_table(kind: str) -> bool:
    """Whether artifacts of this kind are tables."""
    family, _, name = kind.partition("/")
    return kind in TABLES or (family in NAMED_TABLES and bool(name))


def schema_of(kind: str) -> TableSchema:
    """The schema in `pipeline/rollbook/tables/schemas/<kind>.py`; of a named kind, in that of its family."""
    family = kind.partition("/")[0]
    schema: TableSchema = importlib.import_module(f"rollbook.tables.schemas.{family}").SCHEMA
    return schema


# --- tables ---------------------------------------------------------------------------------------


def write_table(
    table: pa.Table,
    kind: str,
    key: str,
    inputs: Mapping[str, str] | None = None,
    settings: str = "",
) -> Facts:
    """Checks a table against its schema and writes it atomically. Same content and inputs, same bytes.

    Raises:
        SchemaError: if the table breaks its schema.
        ArtifactError: if it cannot be written; nothing is left behind.
    """
    path, schema = path_of(kind, key), schema_of(kind)
    table = schema.validate(table, str(path)).combine_chunks()
    facts = Facts(kind, schema.version, key, content_hash(table), dict(inputs or {}), settings)
    table = table.replace_schema_metadata({METADATA_KEY: _json(asdict(facts))})
    with replacing(path) as temporary:
        pq.write_table(
            table,
            temporary,
            compression="zstd",
            row_group_size=ROW_GROUP_ROWS,
            write_page_index=True,
        )
    return facts


def write_rows(table: pa.Table, path: Path) -> None:
    """Writes a Parquet file of the user's own, outside of artifacts/; it appears whole or not at all.

    Raises:
        ArtifactError: if it cannot be written.
    """
    with replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def read_table(path: Path, kind: str, at: Path | None = None) -> tuple[pa.Table, Facts]:
    """Reads a table and checks that it is what it says: kind, version, schema, values and content hash.

    A table of an older version is returned as one of today's; its facts stay as they were recorded. `at` is where its
    bytes lie, if not in its place.

    Raises:
        ArtifactError: if it is missing, truncated, of another kind, or edited by hand.
        VersionError: if this Rollbook does not read its version.
        SchemaError: if its columns or values break the schema.
    """
    facts = read_facts(at or path)
    refuse_other(facts, kind, path)
    table = rows_in(at or path, path)
    if (found := content_hash(table)) != facts.content_hash:
        raise ArtifactError(
            f"{path}: content changed after it was written (hash {short(found)}, recorded {short(facts.content_hash)})",
            f"{RESTORE}; to change results, change params.yaml or code",
        )
    return schema_of(kind).validate(upgrade(table, kind, facts.version), str(path)), facts


def read_columns(
    path: Path, kind: str, columns: Sequence[str] | None = None, at: Path | None = None
) -> pa.Table:
    """Columns of a table, older versions upgraded; neither hashed nor checked against the schema.

    Args:
        path: of the table; named in errors.
        kind: of table.
        columns: wanted, of today's version; None for all.
        at: where its bytes lie, if not in its place.

    Raises:
        ArtifactError: if it is missing, damaged, another table, or has no such column.
        VersionError: if this Rollbook does not read its version.
    """
    if not (at or path).exists():
        read_facts(at or path)  # says what to do
    try:
        with pq.ParquetFile(at or path) as file:
            schema = file.schema_arrow
            facts = facts_in(schema, path)
            refuse_other(facts, kind, path)
            names = column_names(kind, facts.version, schema.names)
            if missing := [name for name in columns or () if name not in names]:
                raise no_column(path, facts, missing[0])
            wanted = names if columns is None else columns
            table = file.read(stored_columns(kind, facts.version, wanted))
    except (pa.ArrowException, OSError) as error:
        raise damaged(path, error) from None
    return upgrade(table, kind, facts.version, wanted).replace_schema_metadata(None)


def no_column(path: Path, facts: Facts, name: str) -> ArtifactError:
    """What to raise where a table lacks a column that is wanted."""
    return ArtifactError(
        f"{path}: a {facts.kind} table of version {facts.version} without a column {name!r}",
        RESTORE,
    )


def rows_in(file: Path, path: Path) -> pa.Table:
    """The rows of a Parquet file, whatever it is; `path` is named in errors.

    Raises:
        ArtifactError: if it cannot be read.
    """
    try:
        return pq.read_table(file).replace_schema_metadata(None).combine_chunks()
    except (pa.ArrowException, OSError) as error:
        raise damaged(path, error) from None


def refuse_other(facts: Facts, kind: str, path: Path, key: str = "") -> None:
    """Raises unless an artifact is what its path says, and a table of a version that this Rollbook reads.

    `key` is the one that it should have, where the file does not lie in its place.

    Raises:
        ArtifactError: if it is of another kind or key.
        VersionError: if its version is newer, or one that no Rollbook wrote.
    """
    for what, found, expected in (("kind", facts.kind, kind), ("key", facts.key, key or path.stem)):
        if found != expected:
            raise ArtifactError(
                f"{path}: holds {facts.kind} {facts.key}, another {what} than {expected}",
                RESTORE,
            )
    if is_table(kind) and (refused := refusal(kind, facts.version)):
        raise VersionError(f"{path}: {kind} table {refused[0]}", refused[1])


def read_facts(path: Path) -> Facts:
    """What a table or folder says about itself, without reading its content.

    Raises:
        ArtifactError: if it is missing, damaged, or not written by Rollbook.
    """
    if not path.exists():
        raise ArtifactError(
            f"{path}: does not exist",
            "run `dvc repro`, or `dvc checkout` / `dvc pull` if it was made before",
        )
    if path.is_dir():
        try:
            return parse_facts((path / FACTS_FILE).read_bytes())
        except (OSError, ValueError):
            raise ArtifactError(
                f"{path}: not a folder written by Rollbook ({FACTS_FILE} is missing or damaged)"
            ) from None
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        raise damaged(path, error) from None
    return facts_in(schema, path)


def facts_in(schema: pa.Schema, path: Path) -> Facts:
    """What a table says about itself, from its schema; `path` is named in errors.

    Raises:
        ArtifactError: if Rollbook did not write it, or what it says is damaged.
    """
    metadata = schema.metadata or {}
    if METADATA_KEY not in metadata:
        raise ArtifactError(
            f"{path}: a Parquet file that Rollbook did not write, or that another program wrote over",
            RESTORE,
        )
    try:
        return parse_facts(metadata[METADATA_KEY])
    except ValueError as error:
        raise damaged(path, error) from None


def parse_facts(said: bytes) -> Facts:
    """What an artifact says about itself, from the JSON in its metadata or its `rollbook.json`.

    Raises:
        ValueError: if it is no JSON, or not as Rollbook writes it.
    """
    try:
        return Facts(**json.loads(said))
    except TypeError as error:
        raise ValueError(f"not what an artifact says about itself: {error}") from None


# --- folders --------------------------------------------------------------------------------------


def write_folder(
    write: FolderWriter,
    kind: str,
    key: str,
    inputs: Mapping[str, str] | None = None,
    settings: str = "",
    at: Path | None = None,
) -> Facts:
    """Writes a folder that appears whole or not at all, with its digest in `rollbook.json`.

    `at` is where, if not in its place.

    Raises:
        ArtifactError: if it cannot be written; nothing is left behind.
    """
    path = at or path_of(kind, key)
    with replacing(path) as temporary:
        temporary.mkdir()
        try:
            write(temporary)
        except (RollbookError, OSError):
            raise
        except Exception as error:  # safetensors has errors of its own
            if f"(os error {errno.ENOSPC})" in str(error):
                raise OSError(errno.ENOSPC, str(error)) from error
            raise ArtifactError(
                f"{path}: cannot be written: {type(error).__name__}: {error}"
            ) from error
        facts = Facts(kind, 0, key, folder_digest(temporary), dict(inputs or {}), settings)
        (temporary / FACTS_FILE).write_bytes(_json(asdict(facts)))
        for file in files_in(temporary):
            sync(file)
    return facts


def read_folder(path: Path, kind: str, afresh: bool = False) -> Facts:
    """Checks that a folder is a whole artifact of this kind.

    A file that changed is noticed: by its bytes or, if it is large, by inode, size and time, unless it is to be read
    `afresh`.

    Raises:
        ArtifactError: if it is missing, damaged, changed or of another kind.
    """
    facts = read_facts(path)
    refuse_other(facts, kind, path)
    if (found := folder_digest(path, afresh)) != facts.content_hash:
        raise ArtifactError(
            f"{path}: files changed after it was written (digest {short(found)}, recorded {short(facts.content_hash)})",
            RESTORE,
        )
    return facts


# --- JSON -----------------------------------------------------------------------------------------


def write_json(content: Mapping[str, Any], path: Path) -> None:
    """Writes sorted, indented JSON atomically; numbers that are not finite become null."""
    text = (
        json.dumps(finite(content), indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
        + "\n"
    )
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object that `write_json` wrote.

    Raises:
        ArtifactError: if it is missing or malformed, or holds a number that is not finite.
    """
    try:
        content = json.loads(
            path.read_text(encoding="utf-8"), parse_float=_number, parse_constant=_number
        )
    except FileNotFoundError:
        raise ArtifactError(f"{path}: does not exist", "run `dvc repro`") from None
    except ValueError as error:
        raise damaged(path, error) from None
    if not isinstance(content, dict):
        raise ArtifactError(f"{path}: holds {type(content).__name__}, expected an object")
    return content


def read_metrics(path: Path) -> dict[str, float | None]:
    """Reads the numbers of a step; those that were not finite are None.

    Raises:
        ArtifactError: as `read_json`, or if a value is no number.
    """
    content = read_json(path)
    for name, value in content.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise damaged(path, TypeError(f"{name}: {value!r}, expected a number"))
    return content


def _number(text: str) -> float:
    """Of JSON; `write_json` writes none that is not finite, and reading must not bring one in."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not finite")
    return value


def finite(value: Any) -> Any:
    """JSON values at any depth, numbers that are not finite as null."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def damaged(path: Path, error: Exception) -> ArtifactError:
    """What to raise where a file cannot be read as what it should be."""
    return ArtifactError(
        f"{path}: truncated or damaged ({' '.join(str(error).split())[:160]})",
        RESTORE,
    )


def keys_of(kind: str, root: Path = Path()) -> list[str]:
    """Keys of all artifacts of a kind that are on disk in the project at `root`, in the order of iterations."""
    found = {
        path.stem
        for path in (root / ROOT / kind).glob("*")
        if not path.name.startswith(TEMPORARY_PREFIX)
    }
    return sorted(found, key=order_of)
