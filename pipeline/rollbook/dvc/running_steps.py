"""Which steps are running now, and whether DVC is at work. Waits for nothing and disturbs nothing.

A step runs while another process holds its lock. What it has made is in dvc.lock a moment later: DVC hashes it first.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from rollbook.core.scratch import SCRATCH

LOCKS = SCRATCH / "locks"
DVC_LOCK = Path(".dvc/tmp/lock")
"""Held by DVC but while a program runs: also while it writes dvc.lock."""
DVC_WRITES = Path(".dvc/tmp/rwlock")
"""What DVC's processes make, as JSON: before the program starts until what it made is hashed."""


@dataclass(frozen=True)
class RunningStep:
    """A step that a process is running.

    Attributes:
        stage: name of its program.
        key: of the iteration.
        rescore: name of the re-score it is part of, or empty.
        seconds: since it began.
    """

    stage: str
    key: str
    rescore: str
    seconds: float


def label_of(stage: str, key: str, rescore: str = "") -> str:
    """What a step is called: its program and its iteration, as in dvc.yaml."""
    return f"{stage}@{rescore}-{key}" if rescore else f"{stage}@{key}"


def lock_file_of(stage: str, key: str, rescore: str = "") -> Path:
    """The file that is locked while a step runs."""
    return LOCKS / f"{'-'.join(filter(None, (stage, rescore, key)))}.lock"


def running_steps() -> list[RunningStep]:
    """The steps of the current project that are running, the oldest first."""
    held = [_step(lock) for lock in LOCKS.glob("*.lock") if _is_held(lock)]
    found = [step for step in held if step.key]  # other commands have locks there too
    return sorted(found, key=lambda step: -step.seconds)


def dvc_is_at_work() -> bool:
    """Whether DVC runs steps here, so that dvc.lock may not say yet what was just made."""
    return _is_held(DVC_LOCK) or bool(paths_in_the_making())


def paths_in_the_making() -> set[str]:
    """Outputs that DVC is about to record, relative to the project; not those of processes that were killed."""
    return {os.path.relpath(path) for path, pid in _held_by_dvc()["write"] if is_alive(pid)}


def has_lost_dvc() -> bool:
    """Whether the DVC that started this stage program has ended: its parent is none of those that DVC_WRITES names.

    A program starts for half a second before it can ask Linux to die with its parent, and its parent may die in it.
    """
    pids = {pid for held in _held_by_dvc().values() for _, pid in held}
    return bool(pids) and os.getppid() not in pids  # without any, nobody can tell


def _held_by_dvc() -> dict[str, list[tuple[str, int]]]:
    """Paths under `write` and `read` in DVC_WRITES, each with a process; nothing where it cannot be read."""
    try:
        held = json.loads(DVC_WRITES.read_text(encoding="utf-8"))
        return {
            "write": [(path, int(maker["pid"])) for path, maker in held.get("write", {}).items()],
            "read": [
                (path, int(reader["pid"]))
                for path, readers in held.get("read", {}).items()
                for reader in readers
            ],
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {"write": [], "read": []}


def is_alive(pid: int) -> bool:
    """Whether there is such a process, another user's too."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True


def _is_held(lock: Path) -> bool:
    try:
        with lock.open() as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _step(lock: Path) -> RunningStep:
    """From the name of its lock, see `lock_file_of`, which was opened when the step began."""
    stage, _, rest = lock.stem.partition("-")
    rescore, _, key = rest.rpartition("-")
    return RunningStep(stage, key, rescore, max(0.0, time.time() - lock.stat().st_mtime))
