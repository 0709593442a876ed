"""Content hashes of tables and folders; the same content gives the same hash, whatever wrote it."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rollbook.core.scratch import HashCache

LARGE = 1 << 23
"""Bytes from which on the hash of a file is remembered; a smaller one takes milliseconds."""
LARGE_FILES = "large_files.json"
_remembering = threading.Lock()
SHORT = 12
"""Digits shown of a digest, a hash or a commit in sentences and tables; JSON has them whole."""
FACTS_FILE = "rollbook.json"
"""Inside a policy or optimizer folder: its digest and what it was made from."""


def content_hash(table: pa.Table) -> str:
    """Hash of names, types and values of a table, in order; independent of chunks, encodings and the Parquet writer."""
    sha = hashlib.sha256()
    for name in table.column_names:
        column = in_one(table.column(name))
        sha.update(f"{name}:{_type_name(column.type)}:{len(column)};".encode())
        _hash_array(column, sha.update)
    return sha.hexdigest()


def in_one(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array. One chunk is not copied, as `combine_chunks` would."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks or [pa.array([], column.type)])


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
    first, last = (
        int.from_bytes(offsets[place * width : (place + 1) * width].to_pybytes(), "little")
        for place in (array.offset, array.offset + len(array))
    )
    return memoryview(characters)[first:last]


def _type_name(dtype: pa.DataType) -> str:
    """Type without the names of list items, which differ between writers."""
    if pa.types.is_list(dtype) or pa.types.is_large_list(dtype):
        return f"list<{_type_name(dtype.value_type)}>"
    if pa.types.is_struct(dtype):
        return "struct<" + ",".join(f"{item.name}:{_type_name(item.type)}" for item in dtype) + ">"
    return str(dtype)


def short(digest: str) -> str:
    """The first digits of a hash, to be read."""
    return digest[:SHORT]


def sha256_of(file: Path) -> str:
    """SHA-256 of a file's bytes, hex.

    Raises:
        OSError: if it cannot be read.
    """
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def remembered_sha256_of(file: Path) -> str:
    """SHA-256 of a file; that of a large one is remembered by inode, size and time of change, as DVC and Git do it.

    Every stage looks at a policy. What is to find a flipped bit reads the bytes: `sha256_of`.

    Raises:
        OSError: if it cannot be read.
    """
    stat = file.stat()
    if stat.st_size < LARGE:
        return sha256_of(file)
    mark = f"{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}"
    if (digest := HashCache(LARGE_FILES).get(mark)) is None:
        digest = sha256_of(file)
        with _remembering:
            known = HashCache(LARGE_FILES)
            known.put(mark, digest)
            known.save()
    return str(digest)


def folder_digest(folder: Path, afresh: bool = False) -> str:
    """SHA-256 over names and contents of all files but `rollbook.json`.

    Args:
        folder: of a policy or an optimizer state.
        afresh: whether large files are read even where their hashes are remembered.
    """
    hash_of = sha256_of if afresh else remembered_sha256_of
    files = {file.relative_to(folder).as_posix(): file for file in files_in(folder)}
    return digest_of_files({name: hash_of(file) for name, file in files.items()})


def digest_of_files(hashes: Mapping[str, str]) -> str:
    """The digest of a folder whose files, by path within it, have these SHA-256."""
    sha = hashlib.sha256()
    for name in sorted(hashes, key=PurePosixPath):
        if name != FACTS_FILE:
            sha.update(f"{name}:{hashes[name]};".encode())
    return sha.hexdigest()


def md5_of(file: Path) -> str:
    """MD5 of a file's bytes, hex: what DVC calls it."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "md5").hexdigest()


def files_in(folder: Path) -> list[Path]:
    """All files of a folder, also in folders within, sorted by path."""
    return sorted(path for path in folder.rglob("*") if path.is_file())
