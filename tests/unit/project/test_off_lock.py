"""What lies in the workspace and is not what dvc.lock names."""

from __future__ import annotations

import threading
from pathlib import Path

from rollbook.core.hashing import md5_of
from rollbook.project.off_lock import off_lock
from rollbook.project.run.run import Run

FILE = Path("artifacts/run_info/update_policy/i0001.json")


def recorded(md5s: dict[str, str]) -> Run:
    """A run whose lock files name these outputs."""
    run = Run()
    vars(run)["md5s"] = md5s
    return run


def test_another_run_and_what_is_not_there(project: Path) -> None:
    FILE.parent.mkdir(parents=True)
    assert off_lock(recorded({FILE.as_posix(): "0" * 32}), {"i0001"}) == []
    FILE.write_text("{}")
    assert off_lock(recorded({FILE.as_posix(): md5_of(FILE)}), {"i0001"}) == []
    assert off_lock(recorded({FILE.as_posix(): "0" * 32}), {"i0001"}) == ["update_policy@i0001"]
    assert off_lock(recorded({FILE.as_posix(): "0" * 32}), {"i0002"}) == []


def test_a_file_may_vanish_while_it_is_looked_at(project: Path) -> None:
    FILE.parent.mkdir(parents=True)
    done = threading.Event()

    def run_again() -> None:
        while not done.is_set():
            FILE.write_text("{}")
            FILE.unlink()

    thread = threading.Thread(target=run_again)
    thread.start()
    try:
        for _ in range(3000):
            assert off_lock(recorded({FILE.as_posix(): "0" * 32}), {"i0001"}) in (
                [],
                ["update_policy@i0001"],
            )
    finally:
        done.set()
        thread.join()
