"""How a stage program lives and dies: with its parent, one at a time per output, and with errors that read well."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib.metadata
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from rollbook.core.errors import ArtifactError, RollbookError
from rollbook.core.own_code import search_project_last

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LOCK_WAIT_SECONDS = 20.0
COLLECT_AFTER = 100_000
"""Allocations between garbage collections. With Python's 700, collecting takes a quarter of the time that torch and
transformers need to be imported, and most of the time that a program with them needs to exit."""


def die_with_parent(by: signal.Signals = signal.SIGKILL) -> None:
    """Asks Linux to kill this process when its parent dies.

    A killed `dvc` leaves its stage running, and the next `dvc repro` would start it a second time.

    Args:
        by: the signal; a process that wants to end something first waits for another one than SIGKILL.
    """
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, by)
    if os.getppid() != parent:
        os.kill(os.getpid(), by)


def adopt_orphans() -> None:
    """Asks Linux to make this process the parent of descendants that lose theirs; elsewhere nothing happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


@contextlib.contextmanager
def exclusive(lock: Path, what: str, progress: Sequence[Path] = ()) -> Iterator[None]:
    """Holds a file lock. A predecessor that is just being killed gets some seconds to go.

    Args:
        lock: the file.
        what: is done under it.
        progress: files that change while the holder gets on; whenever one does, the wait begins anew.

    Raises:
        ArtifactError: if another process keeps the lock.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as stream:
        seen, deadline = changed_ns(progress), time.monotonic() + LOCK_WAIT_SECONDS
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if (now := changed_ns(progress)) != seen:
                    seen, deadline = now, time.monotonic() + LOCK_WAIT_SECONDS
                if time.monotonic() > deadline:
                    raise ArtifactError(
                        f"{what} is already running in another process", "wait for it, or stop it"
                    ) from None
                time.sleep(0.1)
        yield


def changed_ns(files: Iterable[Path]) -> list[int]:
    """When each of the files that are there was last written, nanoseconds since 1970."""
    found = []
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            found.append(file.stat().st_mtime_ns)
    return found


def seconds_since_start() -> float:
    """Seconds since this process was started, interpreter start-up included."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        return time.process_time()


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of those packages that are installed."""
    versions = {}
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def processors() -> int:
    """Processors this process may use; what `runtime.threads: auto` means."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def started_module() -> tuple[str, list[str]]:
    """The module that this process was started with, `python -m MODULE` or `python -P -m MODULE`, and its arguments.

    Empty if with none.
    """
    words = sys.orig_argv[1:]
    if words[:1] == ["-P"]:
        del words[0]
    return (words[1], words[2:]) if words[:1] == ["-m"] and len(words) > 1 else ("", [])


def run_program(program: Callable[[], None], name: str, debug: bool = False) -> int:
    """Runs a program; an expected failure becomes one clear message and exit code 1.

    Args:
        program: what to run.
        name: shown before the message.
        debug: show the traceback as well.
    """
    gc.set_threshold(COLLECT_AFTER)
    search_project_last()
    try:
        program()
    except RollbookError as error:
        if debug:
            raise
        sys.stdout.flush()
        print(f"\n{name}: {error}", file=sys.stderr)
        return 1
    except SystemExit as error:
        print(f"\n{name}: stopped by sys.exit({error.code!r}) in code it runs", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\n{name}: interrupted", file=sys.stderr)
        return 130
    finally:
        gc.freeze()  # nothing is left to be found at exit
    return 0
