"""Which steps are running now: those whose lock another process holds. Waits for nothing and disturbs nothing."""

from __future__ import annotations

import fcntl
import time
from dataclasses import dataclass
from pathlib import Path

from pipeline.scratch import SCRATCH

LOCKS = SCRATCH / "locks"


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
    found = [_step(lock) for lock in LOCKS.glob("*.lock") if _is_held(lock)]
    return sorted(found, key=lambda step: -step.seconds)


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
