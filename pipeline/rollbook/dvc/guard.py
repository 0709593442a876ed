"""Keeps what DVC writes readable when it is killed while writing.

DVC rewrites dvc.lock in place, so a kill at that moment leaves it empty or cut off, and the next
`dvc repro` cannot read it. Every stage keeps a copy as it starts (DVC is not writing then). `check`
starts one small process that waits for DVC to end and, if the file is not whole, puts the copy back.
What the copy lacks is at most the last finished stage, which DVC restores from its run cache.

So it is with .dvc/tmp/rwlock, which says what DVC's processes read and write now. Torn, it is removed: it holds
nothing of a process that has ended. As DVC writes it before it starts `check`, the small process stays for a minute,
so that a DVC that is started again at once, and killed again, is watched from its first moment.

`rollbook check` does both too, for where everything was killed at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollbook.core.errors import ConfigError
from rollbook.core.process import changed_ns
from rollbook.core.scratch import SCRATCH
from rollbook.dvc.lock import (
    LOCK_FILE,
    MD5,
    PIPELINE_FILE,
    Entry,
    entries_of,
    parse_stages,
    read_entries,
)
from rollbook.dvc.running_steps import DVC_WRITES, dvc_is_at_work

GOOD_COPY = SCRATCH / "dvc.lock"
WRITING_SECONDS = 10.0
"""DVC needs less to write the largest file that was seen."""
DVC_WRITES_LOCK = DVC_WRITES.with_suffix(".lock")
"""DVC holds it, as `flock`, while it reads and writes DVC_WRITES."""
ATTEMPTS, PAUSE_SECONDS = 50, 0.1
"""Tries to get DVC_WRITES_LOCK, and the pause between two: DVC holds it for milliseconds at a time."""
STAYS_SECONDS = 60.0
"""How long the small process waits for a DVC that is started after a killed one: longer than a user, or a scheduler
that starts what failed again, needs for it."""


def watch_parent() -> None:
    """Keeps a copy and starts the watching process, if this program was started by DVC."""
    if "DVC_STAGE" in os.environ:
        remember()
        command = [sys.executable, "-P", "-m", "rollbook.dvc.guard", str(os.getppid())]
        quiet = subprocess.DEVNULL
        subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)


def mend() -> list[Path]:
    """Makes readable what a killed DVC left unreadable, if no other is at work. Returns the files."""
    if dvc_is_at_work():
        return []
    good = _stages(_text(GOOD_COPY)) or {}
    # One that is readable and lacks steps of the copy may have been checked out.
    text = _text(LOCK_FILE)
    damaged = LOCK_FILE.exists() and not _is_readable(text, _stages(text), good)
    mended = {DVC_WRITES: remove_torn_rwlock(), LOCK_FILE: damaged and repair()}
    return [file for file, done in mended.items() if done]


def remember() -> None:
    """Keeps a copy of dvc.lock; called at the start of every stage, when DVC is not writing it."""
    if not LOCK_FILE.exists():
        GOOD_COPY.unlink(missing_ok=True)
        return
    GOOD_COPY.parent.mkdir(parents=True, exist_ok=True)
    temporary = GOOD_COPY.with_suffix(".new")
    with contextlib.suppress(OSError):
        shutil.copyfile(LOCK_FILE, temporary)
        temporary.replace(GOOD_COPY)


def repair() -> bool:
    """Puts the copy back if dvc.lock is not whole. Returns whether it did."""
    good = _stages(_text(GOOD_COPY))
    if good is None or _is_whole(_text(LOCK_FILE), good):
        return False
    temporary = LOCK_FILE.with_name(f".{LOCK_FILE.name}.new")
    shutil.copyfile(GOOD_COPY, temporary)
    temporary.replace(LOCK_FILE)
    return True


def remove_torn_rwlock() -> bool:
    """Removes .dvc/tmp/rwlock if DVC could not read it and is not writing it. Returns whether it did."""
    if not is_torn(DVC_WRITES):
        return False
    for _ in range(ATTEMPTS):
        try:
            with DVC_WRITES_LOCK.open("a") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if torn := is_torn(DVC_WRITES):
                    DVC_WRITES.unlink()
                return torn
        except BlockingIOError:  # another DVC is at it
            time.sleep(PAUSE_SECONDS)
        except OSError:
            break
    return False


def current_entries() -> list[Entry]:
    """The finished steps of dvc.lock; while DVC is writing it, as they stood in the copy.

    Raises:
        ConfigError: if the file is damaged, and nobody is writing it.
    """
    text, good = _text(LOCK_FILE), _stages(_text(GOOD_COPY))
    if not _is_being_written():
        return read_entries()
    stages = good if good is not None and not _is_whole(text, good) else _stages(text)
    try:
        return list(entries_of(stages or {}))
    except ConfigError:  # cut off within an entry
        return list(entries_of(good or {}))


def _is_being_written() -> bool:
    """Whether it changed a moment ago. An older one with fewer steps is whole: another commit was checked out."""
    try:
        return time.time() - LOCK_FILE.stat().st_mtime < WRITING_SECONDS
    except OSError:
        return True


def _is_whole(text: str, good: Mapping[str, Any]) -> bool:
    """Readable, and nothing of the copy is gone."""
    stages = _stages(text)
    return stages is not None and _is_readable(text, stages, good) and stages.keys() >= good.keys()


def _is_readable(text: str, stages: Mapping[str, Any] | None, good: Mapping[str, Any]) -> bool:
    """The last line is complete, and entries other than the copy's say as much as dvc.yaml asks.

    Args:
        text: of the file.
        stages: in it; None: it cannot be read.
        good: of the copy.
    """
    if stages is None or not text.endswith("\n"):
        return False
    declared = _stages(_text(PIPELINE_FILE)) or {}
    return all(
        (name in good and entry == good[name])
        or _is_complete(entry, declared.get(name.partition("@")[0], {}))
        for name, entry in stages.items()
    )


def _is_complete(entry: Any, declared: Mapping[str, Any]) -> bool:
    if not isinstance(entry, dict) or "cmd" not in entry:
        return False
    asked = declared.get("do", declared)
    outputs = entry.get("outs") or []
    wanted = sum(len(asked.get(section) or []) for section in ("outs", "metrics", "plots"))
    hashed = [
        isinstance(item, dict) and "size" in item and MD5.fullmatch(str(item.get("md5")))
        for item in [*(entry.get("deps") or []), *outputs]
    ]
    return len(outputs) >= wanted and all(hashed)


def is_torn(file: Path) -> bool:
    """Whether it is there and is not JSON."""
    if not file.exists():
        return False
    try:
        json.loads(_text(file))
    except ValueError:
        return True
    return False


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _stages(text: str) -> dict[str, Any] | None:
    """Stages of a lock file or dvc.yaml by name; None if it cannot be read or has none."""
    try:
        return parse_stages(text) or None
    except ValueError:
        return None


def _wait_for_end(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except (OSError, AttributeError):
        while Path(f"/proc/{pid}").exists():
            time.sleep(0.2)
        return
    select.select([descriptor], [], [])
    os.close(descriptor)


def _stay() -> None:
    """Removes what is torn until a stage starts, which has a guard of its own, or for a minute from the last time."""
    copied, until = changed_ns([GOOD_COPY]), time.monotonic() + STAYS_SECONDS
    while time.monotonic() < until and changed_ns([GOOD_COPY]) == copied:
        if remove_torn_rwlock():
            until = time.monotonic() + STAYS_SECONDS
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    _wait_for_end(int(sys.argv[1]))
    repair()
    _stay()
