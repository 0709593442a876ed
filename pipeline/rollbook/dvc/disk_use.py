"""What a run takes on disk, by kind of thing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rollbook.core.errors import RollbookError
from rollbook.dvc.cache import cache_folder

MLFLOW = Path("mlflow")


@dataclass(frozen=True)
class DiskUse:
    """Bytes and files of one kind of thing; what is one file under two names is counted where it comes first."""

    kind: str
    files: int
    size: int


def disk_uses(artifacts: Path) -> list[DiskUse]:
    """Files by kind of artifact, and what DVC's cache and MLflow hold beyond them.

    Args:
        artifacts: folder of all artifacts, with a folder for each kind.
    """
    seen: set[tuple[int, int]] = set()
    found = []
    for place in (*(sorted(artifacts.iterdir()) if artifacts.is_dir() else ()), *_cache(), MLFLOW):
        if place.is_dir():
            sizes = list(_new_files(place, seen))
            found.append(DiskUse(place.as_posix(), len(sizes), sum(sizes)))
    return found


def _cache() -> Iterator[Path]:
    """DVC's cache, relative to the project if it lies there; none outside of a DVC project."""
    try:
        folder = cache_folder()
    except RollbookError:
        return
    here = Path.cwd()
    yield folder.relative_to(here) if folder.is_relative_to(here) else folder


def _new_files(place: Path, seen: set[tuple[int, int]]) -> Iterator[int]:
    """Sizes of the files below a folder that were not seen under another name."""
    for folder, _, files in os.walk(place):
        for name in files:
            try:
                stat = (Path(folder) / name).stat()
            except OSError:
                continue  # gone while we look
            if (stat.st_dev, stat.st_ino) not in seen:
                seen.add((stat.st_dev, stat.st_ino))
                yield stat.st_size
