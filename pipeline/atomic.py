"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from pipeline.errors import DISK_FULL, FREE_SPACE, ArtifactError

TEMPORARY_PREFIX = ".writing-"
NOT_ALLOWED = (errno.EROFS, errno.EACCES, errno.EPERM)
UNWRITABLE = (*DISK_FULL, *NOT_ALLOWED)
"""Numbers of errors that are no fault of a program that writes."""


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary name beside `path`; on success it is synced to disk and takes the path's place."""
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove(temporary)
        yield temporary
        sync(temporary)
        if path.is_dir():
            _remove(path)
        temporary.replace(path)
        sync(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            _remove(temporary)
        raise unwritable(path, error) from error
    except BaseException:
        with contextlib.suppress(OSError):
            _remove(temporary)
        raise


def unwritable(path: Path, error: OSError) -> ArtifactError:
    """What to raise where nothing can be written, with the reason that the system gave."""
    if error.errno in DISK_FULL:
        return ArtifactError(f"{path}: cannot be written: no space left on the disk", FREE_SPACE)
    hint = "work in a clone or a copy that is yours" if error.errno in NOT_ALLOWED else ""
    return ArtifactError(f"{path}: cannot be written: {error}", hint)


def sync(path: Path) -> None:
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
