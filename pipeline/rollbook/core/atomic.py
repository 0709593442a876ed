"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from rollbook.core.errors import DISK_FULL, FREE_SPACE, ArtifactError

TEMPORARY_PREFIX = ".writing-"
NOT_ALLOWED = (errno.EROFS, errno.EACCES, errno.EPERM)
UNWRITABLE = (*DISK_FULL, *NOT_ALLOWED)
"""Numbers of errors that are no fault of a program that writes."""


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary name beside `path`; on success it is synced to disk and takes the path's place.

    The name is this process's own, so that of two that write at once the last one wins.
    """
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for left in _left_behind(path):
            _remove(left)
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


def _left_behind(path: Path) -> list[Path]:
    """What writing `path` has left of processes that were killed, and of this one."""
    name = re.compile(rf"{re.escape(TEMPORARY_PREFIX)}(\d+)-{re.escape(path.name)}")
    found = ((each, name.fullmatch(each.name)) for each in path.parent.iterdir())
    return [each for each, match in found if match and not _is_another(int(match[1]))]


def _is_another(pid: int) -> bool:
    """Whether it is a running process, and not this one; one that nobody has waited for is not."""
    import psutil

    try:
        return pid != os.getpid() and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, OverflowError):
        return False


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
