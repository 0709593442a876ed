"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from pipeline.errors import ArtifactError

TEMPORARY_PREFIX = ".writing-"


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
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = "no space left on the disk" if full else str(error)
        raise ArtifactError(
            f"{path}: cannot be written: {reason}",
            "free some space and run `dvc repro` again; nothing was lost" if full else "",
        ) from error
    except BaseException:
        with contextlib.suppress(OSError):
            _remove(temporary)
        raise


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
