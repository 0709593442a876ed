"""What this process holds: children and open files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def children() -> set[int]:
    """Processes started by this one."""
    return {
        int(child)
        for task in Path("/proc/self/task").iterdir()
        for child in (task / "children").read_text().split()
    }


def open_files() -> set[str]:
    """Files, pipes and sockets that are open."""
    return {str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.exists()}


@contextmanager
def nothing_left() -> Iterator[None]:
    """Fails if what is done within leaves an open file, socket or child behind."""
    processes, files = children(), open_files()
    yield
    assert children() <= processes
    assert open_files() <= files
