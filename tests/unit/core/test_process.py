import contextlib
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from rollbook.core.errors import ArtifactError, RollbookError
from rollbook.core.process import exclusive, run_program

CHILD = (
    "import time; from rollbook.core.process import die_with_parent; die_with_parent(); "
    "print('ready', flush=True); time.sleep(60)"
)
PARENT = """
import subprocess, sys, time
command = ["/bin/sh", "-c", "exec " + sys.argv[1]]
child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
print(child.stdout.readline().strip(), child.pid, flush=True)
time.sleep(60)
"""


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_stage_dies_with_its_parent() -> None:
    """As under DVC: the parent starts a shell, which `exec`s the command. The parent is killed with SIGKILL."""
    command = shlex.join([sys.executable, "-c", CHILD])
    start = [sys.executable, "-c", PARENT, command]
    with subprocess.Popen(start, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready, pid = process.stdout.readline().split()
        assert ready == "ready" and _alive(int(pid))
        process.kill()
        deadline = time.monotonic() + 10
        while _alive(int(pid)) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not _alive(int(pid))


def test_lock_is_held_by_one_process(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollbook.core.process.LOCK_WAIT_SECONDS", 0.3)
    with exclusive(Path("locks/a.lock"), "stage a"):
        with (
            pytest.raises(ArtifactError, match="stage a is already running"),
            exclusive(Path("locks/a.lock"), "stage a"),
        ):
            pass
        with exclusive(Path("locks/b.lock"), "stage b"):
            pass
    with exclusive(Path("locks/a.lock"), "stage a"):
        pass


def test_expected_errors_are_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> None:
        raise RollbookError("place: wrong", "mend it")

    assert run_program(fails, "stage") == 1
    assert capsys.readouterr().err == "\nstage: place: wrong\n  hint: mend it\n"
    with pytest.raises(RollbookError):
        run_program(fails, "stage", debug=True)
    assert run_program(lambda: None, "stage") == 0


def test_unexpected_errors_keep_their_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        run_program(lambda: print(1 / 0), "stage")


def test_seconds_since_start_counts_the_interpreter() -> None:
    result = subprocess.run(
        [
            sys.executable,
            "-c",
            "import time; time.sleep(0.3); from rollbook.core.process import *; print(seconds_since_start())",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert 0.3 <= float(result.stdout) < 30


@pytest.mark.parametrize("ends", [True, False])
def test_a_holder_is_waited_for_while_it_gets_on(
    project: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """It writes every 15 s for a minute, then is done or hangs."""
    written, holder, clock = Path("store.db"), contextlib.ExitStack(), 0

    def sleep(_: float) -> None:
        nonlocal clock
        clock += 15
        if clock <= 60:
            written.touch()
            os.utime(written, (clock, clock))
        elif ends:
            holder.close()

    with holder:
        holder.enter_context(exclusive(Path("a.lock"), "sending"))
        monkeypatch.setattr(
            "rollbook.core.process.time", SimpleNamespace(monotonic=lambda: clock, sleep=sleep)
        )
        waiting = contextlib.nullcontext() if ends else pytest.raises(ArtifactError)
        with waiting, exclusive(Path("a.lock"), "sending", [written]):
            pass
    assert clock == (75 if ends else 90)
