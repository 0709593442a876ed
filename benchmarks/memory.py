"""How much memory a process and its scoring processes take while something runs."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable
from pathlib import Path

LOOK_SECONDS = 0.02


def resident_mib(process: int) -> float:
    """Memory of a process; 0 if it is gone."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * resource.getpagesize() / 2**20


def peak_mib(process: int) -> float:
    """The most memory that the program of a process has taken so far; 0 if it is gone.

    It starts anew with each program, unlike `ru_maxrss`, where a child counts what its parent held.
    """
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0.0
    found = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(found[0]) / 2**10 if found else 0.0


class Watch:
    """Peaks of a process and its scoring processes while it is entered.

    Args:
        process: default this one.
        memory: what is looked at every `LOOK_SECONDS`.

    Attributes:
        own: peak of the process, MiB.
        largest_child: peak of its largest scoring process, MiB.
    """

    def __init__(
        self, process: int | None = None, memory: Callable[[int], float] = resident_mib
    ) -> None:
        self.own = self.largest_child = 0.0
        self._process = os.getpid() if process is None else process
        self._memory = memory
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while True:
            self.own = max(self.own, self._memory(self._process))
            for keeper in _children(self._process):
                # Until it runs a program of its own, a child counts its parent's memory.
                if "scoring.worker" in _command(keeper):
                    sizes = map(self._memory, _children(keeper))
                    self.largest_child = max(self.largest_child, *sizes, 0.0)
            if self._done.wait(LOOK_SECONDS):
                return


def _children(process: int) -> list[int]:
    """Children of its main thread, which starts the keepers of scoring processes."""
    try:
        listing = Path(f"/proc/{process}/task/{process}/children").read_text()
    except OSError:
        return []
    return [int(child) for child in listing.split()]


def _command(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return ""
