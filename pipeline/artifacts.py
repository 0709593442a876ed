"""Where artifacts live and how they are written and read: typed, hashed, atomic, the same bytes for the same content.

    artifacts/<kind>/<key>.parquet            tables (schemas in pipeline/schemas)
    artifacts/<kind>/<key>/                   policies, optimizers
    artifacts/metrics/<stage>/<key>.json      flat, deterministic numbers
    artifacts/run_info/<stage>/<key>.json     what varies from run to run
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import ArtifactError, nearest

if TYPE_CHECKING:
    import polars as pl

    from pipeline.schemas.base import TableSchema

ROOT = Path("artifacts")
TABLES = ("data", "prompts", "rollouts", "scores", "logprobs", "advantages", "updates", "optimizer_steps", "evaluations")
FOLDERS = ("policies", "optimizers")
FACTS_FILE = "rollbook.json"
"""Inside a policy or optimizer folder: its digest and what it was made from."""
METADATA_KEY = b"rollbook"
ROW_GROUP_ROWS = 16_384
TEMPORARY_PREFIX = ".writing-"

FolderWriter = Callable[[Path], None]
"""Fills an empty folder."""


@dataclass(frozen=True)
class Facts:
    """What an artifact says about itself: deterministic, without time, host or commit.

    Attributes:
        kind: artifact kind.
        version: schema version (0 for folders).
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


def path_of(kind: str, key: str) -> Path:
    """Path of an artifact, relative to the project.

    Args:
        kind: a table or folder kind, `metrics/<stage>` or `run_info/<stage>`.
        key: iteration key, or `train` / `evaluation` for data.
    """
    if kind in FOLDERS:
        return ROOT / kind / key
    return ROOT / kind / f"{key}.{'parquet' if kind in TABLES else 'json'}"


def schema_of(kind: str) -> TableSchema:
    """The schema in `pipeline/schemas/<kind>.py`."""
    schema: TableSchema = importlib.import_module(f"pipeline.schemas.{kind}").SCHEMA
    return schema


# --- tables -----------------------------------------------------------------------------------------------------------


def write_table(table: pa.Table, kind: str, key: str, inputs: Mapping[str, str] | None = None, settings: str = "") -> Facts:
    """Checks a table against its schema and writes it atomically. Same content and inputs, same bytes.

    Raises:
        SchemaError: if the table breaks its schema.
        ArtifactError: if it cannot be written; nothing is left behind.
    """
    path, schema = path_of(kind, key), schema_of(kind)
    table = schema.validate(table, str(path)).combine_chunks()
    facts = Facts(kind, schema.version, key, content_hash(table), dict(inputs or {}), settings)
    table = table.replace_schema_metadata({METADATA_KEY: _json(asdict(facts))})
    with _replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", row_group_size=ROW_GROUP_ROWS, write_page_index=True)
    return facts


def read_table(path: Path, kind: str) -> tuple[pa.Table, Facts]:
    """Reads a table and checks that it is what it says: kind, version, schema, values and content hash.

    Raises:
        ArtifactError: if it is missing, truncated, of another kind or version, or edited by hand.
        SchemaError: if its columns or values break the schema.
    """
    facts = read_facts(path)
    schema = schema_of(kind)
    if facts.kind != kind:
        raise ArtifactError(f"{path}: holds {facts.kind!r}, expected {kind!r}")
    if facts.version != schema.version:
        raise ArtifactError(
            f"{path}: {kind} table of version {facts.version}, this Rollbook reads version {schema.version}",
            "check out the Rollbook that wrote it, or run its stage again",
        )
    try:
        table = pq.read_table(path).replace_schema_metadata(None).combine_chunks()
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from None
    if (found := content_hash(table)) != facts.content_hash:
        raise ArtifactError(
            f"{path}: content changed after it was written (hash {found[:12]}, recorded {facts.content_hash[:12]})",
            f"restore it with `dvc checkout --force {path}`; to change results, change params.yaml or the code and run `dvc repro`",
        )
    return schema.validate(table, str(path)), facts


def read_facts(path: Path) -> Facts:
    """What a table or folder says about itself, without reading its content.

    Raises:
        ArtifactError: if it is missing, damaged, or not written by Rollbook.
    """
    if not path.exists():
        raise ArtifactError(f"{path}: does not exist", "run `dvc repro`, or `dvc checkout` / `dvc pull` if it was made before")
    if path.is_dir():
        try:
            return Facts(**json.loads((path / FACTS_FILE).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            raise ArtifactError(f"{path}: not a folder written by Rollbook ({FACTS_FILE} is missing or damaged)") from None
    try:
        metadata = pq.read_schema(path).metadata or {}
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from None
    if METADATA_KEY not in metadata:
        raise ArtifactError(
            f"{path}: a Parquet file that Rollbook did not write, or that another program wrote over",
            f"restore it with `dvc checkout --force {path}`",
        )
    return Facts(**json.loads(metadata[METADATA_KEY]))


def content_hash(table: pa.Table) -> str:
    """Hash of names, types and values of a table, in order; independent of chunks, encodings and the Parquet writer."""
    sha = hashlib.sha256()
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
        sha.update(f"{name}:{_type_name(column.type)}:{len(column)};".encode())
        _hash_array(column, sha.update)
    return sha.hexdigest()


def _hash_array(array: pa.Array, update: Callable[[Any], None]) -> None:
    if array.null_count:
        update(pc.cast(array.is_null(), pa.uint8()).to_numpy(zero_copy_only=False))
    update(f"{array.null_count};".encode())
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        update(pc.fill_null(pc.cast(pc.list_value_length(array), pa.int64()), 0).to_numpy())
        _hash_array(pc.list_flatten(array), update)
    elif pa.types.is_struct(array.type):
        for place in range(array.type.num_fields):
            _hash_array(pc.struct_field(array, [place]), update)
    elif pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        update(pc.fill_null(pc.cast(pc.binary_length(array), pa.int64()), 0).to_numpy())
        update(_characters(pc.fill_null(array, "")))
    elif pa.types.is_null(array.type):
        return
    elif pa.types.is_boolean(array.type):
        update(pc.cast(pc.fill_null(array, False), pa.uint8()).to_numpy())
    else:
        update(pc.fill_null(array, 0).to_numpy() if array.null_count else array.to_numpy())


def _characters(array: pa.Array) -> memoryview:
    """All characters of a string array, one behind the other, without copying them."""
    _, offsets, characters = array.buffers()
    width = 8 if pa.types.is_large_string(array.type) else 4
    if offsets is None or characters is None:
        return memoryview(b"")
    first, last = (int.from_bytes(offsets[place * width : (place + 1) * width].to_pybytes(), "little") for place in (array.offset, array.offset + len(array)))
    return memoryview(characters)[first:last]


def _type_name(dtype: pa.DataType) -> str:
    """Type without the names of list items, which differ between writers."""
    if pa.types.is_list(dtype) or pa.types.is_large_list(dtype):
        return f"list<{_type_name(dtype.value_type)}>"
    if pa.types.is_struct(dtype):
        return "struct<" + ",".join(f"{item.name}:{_type_name(item.type)}" for item in dtype) + ">"
    return str(dtype)


# --- folders ----------------------------------------------------------------------------------------------------------


def write_folder(write: FolderWriter, kind: str, key: str, inputs: Mapping[str, str] | None = None, settings: str = "") -> Facts:
    """Writes a folder that appears whole or not at all, with its digest in `rollbook.json`.

    Raises:
        ArtifactError: if it cannot be written; nothing is left behind.
    """
    path = path_of(kind, key)
    with _replacing(path) as temporary:
        temporary.mkdir()
        write(temporary)
        facts = Facts(kind, 0, key, folder_digest(temporary), dict(inputs or {}), settings)
        (temporary / FACTS_FILE).write_bytes(_json(asdict(facts)))
        for file in _files(temporary):
            _sync(file)
    return facts


def read_folder(path: Path, kind: str) -> Facts:
    """Checks that a folder is a whole artifact of this kind. The digest is re-computed, so a changed file is noticed.

    Raises:
        ArtifactError: if it is missing, damaged, changed or of another kind.
    """
    facts = read_facts(path)
    if facts.kind != kind:
        raise ArtifactError(f"{path}: holds {facts.kind!r}, expected {kind!r}")
    if (found := folder_digest(path)) != facts.content_hash:
        raise ArtifactError(
            f"{path}: files changed after it was written (digest {found[:12]}, recorded {facts.content_hash[:12]})",
            f"restore it with `dvc checkout --force {path}`",
        )
    return facts


def folder_digest(folder: Path) -> str:
    """SHA-256 over names and contents of all files but `rollbook.json`."""
    sha = hashlib.sha256()
    for file in _files(folder):
        if file.name == FACTS_FILE and file.parent == folder:
            continue
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        sha.update(f"{file.relative_to(folder).as_posix()}:{digest};".encode())
    return sha.hexdigest()


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


# --- JSON -------------------------------------------------------------------------------------------------------------


def write_json(content: Mapping[str, Any], path: Path) -> None:
    """Writes sorted, indented JSON atomically; numbers that are not finite become null."""
    text = json.dumps(_finite(content), indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
    with _replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
        ArtifactError: if it is missing or malformed.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ArtifactError(f"{path}: does not exist", "run `dvc repro`") from None
    except ValueError as error:
        raise _damaged(path, error) from None
    if not isinstance(content, dict):
        raise ArtifactError(f"{path}: holds {type(content).__name__}, expected an object")
    return content


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


# --- atomic replacement -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary name beside `path`; on success it is synced to disk and takes the path's place."""
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove(temporary)
        yield temporary
        _sync(temporary)
        if path.is_dir():
            _remove(path)
        os.replace(temporary, path)
        _sync(path.parent)
    except (OSError, pa.ArrowException) as error:
        _remove(temporary)
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = "no space left on the disk" if full else str(error)
        raise ArtifactError(f"{path}: cannot be written: {reason}", "free some space and run `dvc repro` again; nothing was lost" if full else "") from error
    except BaseException:
        _remove(temporary)
        raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _damaged(path: Path, error: Exception) -> ArtifactError:
    return ArtifactError(
        f"{path}: truncated or damaged ({' '.join(str(error).split())[:160]})", f"restore it with `dvc checkout --force {path}`"
    )


# --- all iterations as one data set -------------------------------------------------------------------------------------


def keys_of(kind: str) -> list[str]:
    """Keys of all artifacts of a kind that are on disk, sorted."""
    return sorted(path.stem for path in (ROOT / kind).glob("*") if not path.name.startswith(TEMPORARY_PREFIX))


def load(kind: str, join: Sequence[str] = (), iterations: Iterable[str] | None = None) -> pl.DataFrame:
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
    import polars as pl

    for name in (kind, *join):
        if name not in TABLES:
            raise ArtifactError(f"there is no table {name!r}; {nearest(name, TABLES)}")
    wanted = sorted(iterations) if iterations is not None else keys_of(kind)
    if not wanted:
        raise ArtifactError(f"{ROOT / kind}: holds no tables yet", "run `dvc repro`")

    def frame(name: str) -> pl.LazyFrame:
        paths = [path_of(name, key) for key in wanted if iterations is not None or path_of(name, key).exists()]
        if missing := [str(path) for path in paths if not path.exists()]:
            raise ArtifactError(f"{', '.join(missing)}: not on disk", "run `dvc repro` or `dvc checkout`")
        if not paths:
            raise ArtifactError(f"{ROOT / name}: holds no tables for {', '.join(wanted[:3])}…", "run `dvc repro`")
        return pl.concat([pl.scan_parquet(path) for path in paths], how="diagonal_relaxed")

    left = frame(kind)
    for other in join:
        right = frame(other)
        mine, theirs = left.collect_schema().names(), right.collect_schema().names()
        on = ["rollout_id"] if "rollout_id" in mine and "rollout_id" in theirs else [key for key in ("iteration", "prompt_id") if key in mine and key in theirs]
        new = [name for name in theirs if name not in mine]
        left = left.join(right.select([*on, *new]), on=on, how="left", maintain_order="left")
    return left.collect()
