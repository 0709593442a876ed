"""What this process holds, children and open files, and ports that nobody does."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONPATH = os.pathsep.join([str(ROOT / "pipeline"), str(ROOT)])
"""Under which a program finds this library and these tests, wherever it is started."""


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


def free_port(family: socket.AddressFamily = socket.AF_INET, host: str = "127.0.0.1") -> int:
    """One that nobody listens on at this moment.

    Raises:
        OSError: if this machine has no such address.
    """
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port
