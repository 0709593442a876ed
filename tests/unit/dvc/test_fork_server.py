"""Programs handed to a fork server, as DVC's stages are: this process stands for DVC."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rollbook.dvc.fork_client import socket_of
from tests.processes import ROOT

if sys.platform != "linux":
    pytest.skip("a fork server needs Linux", allow_module_level=True)

SERVER = """
import sys
import types
from rollbook.dvc.fork_server import ForkServer
sys.modules["mlflow"] = types.ModuleType("mlflow")
server = ForkServer(int(sys.argv[1]))
server.serve()
server.close()
"""
SAFE = ((), ("-P",))
"""Options of Python for a program by its old name, which is found in the current folder, and by its new one."""
PROGRAM = """
import atexit, os, signal, subprocess, sys, time
from rollbook.stages import helper
try:
    mark, asked = os.environ.get("MARK"), sys.stdin.readline().strip()
    print(os.getppid(), sys.argv[1:], mark, helper.VALUE, asked, flush=True)
    if sys.argv[1] == "wait":
        time.sleep(60)
except KeyboardInterrupt:
    sys.exit(130)
if sys.argv[1] == "leave":
    if os.fork() == 0:
        for number in (0, 1, 2):
            os.close(number)
        time.sleep(30)
        os._exit(0)
    sys.exit(0)
if sys.argv[1] == "start":
    subprocess.Popen(["sleep", "34.5"], stdin=0, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).wait()
if sys.argv[1] == "modules":
    print("mlflow" in sys.modules)
    sys.exit(0)
if sys.argv[1] == "end":
    atexit.register(print, "at exit", flush=True)
    sys.exit(0)
if sys.argv[1] == "die":
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def server(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A server of this process in a checkout whose only stage is `probe`."""
    (project / "pipeline").mkdir()
    (project / "pipeline/rollbook").symlink_to(ROOT / "pipeline/rollbook")
    monkeypatch.setenv("PYTHONPATH", str(project / "pipeline"))
    (project / "stages").mkdir()
    (project / "stages/__init__.py").write_text(
        "from rollbook.dvc.fork_client import run_forked\nrun_forked()\n"
    )
    (project / "stages/probe.py").write_text(PROGRAM)
    (project / "stages/helper.py").write_text("VALUE = 'first'\n")
    yield from _served(os.getpid())


def _served(dvc: int) -> Iterator[subprocess.Popen[bytes]]:
    socket_of(dvc).parent.mkdir(parents=True, exist_ok=True)
    with subprocess.Popen([sys.executable, "-c", SERVER, str(dvc)]) as process:
        _wait(lambda: socket_of(dvc).exists())
        yield process
        process.kill()
    socket_of(dvc).unlink(missing_ok=True)


def _wait(until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _started(
    *arguments: str, program: str = "rollbook.stages.probe", **environment: str
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *SAFE[program.startswith("rollbook")], "-m", program, *arguments],
        env={**os.environ, "DVC_STAGE": "probe", **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _begun(argument: str) -> subprocess.Popen[str]:
    """A program that is at work."""
    process = _started(argument)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("asked\n")
    process.stdin.flush()
    assert process.stdout.readline()
    return process


def _ran(
    *arguments: str, program: str = "rollbook.stages.probe", **environment: str
) -> tuple[int, str]:
    process = _started(*arguments, program=program, **environment)
    out, _ = process.communicate("asked\n")
    return process.returncode, out.strip()


def _forks(server: subprocess.Popen[bytes]) -> str:
    return Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text()


def test_a_program_runs_in_a_fork_with_its_own_arguments_environment_and_files(
    server: subprocess.Popen[bytes],
) -> None:
    assert _ran("0", MARK="one") == (0, f"{server.pid} ['0'] one first asked")
    assert _ran("3", "more", MARK="two") == (3, f"{server.pid} ['3', 'more'] two first asked")


def test_a_program_by_its_old_name_is_served_too(server: subprocess.Popen[bytes]) -> None:
    found = _ran("0", program="stages.probe", MARK="old")
    assert found == (0, f"{server.pid} ['0'] old first asked")


def test_an_environment_larger_than_the_buffer_of_a_socket(server: subprocess.Popen[bytes]) -> None:
    many = {f"LARGE_{number}": "x" * 100_000 for number in range(8)}
    assert _ran("0", MARK="behind", **many)[1] == f"{server.pid} ['0'] behind first asked"


def test_code_that_was_edited_is_read_again(server: subprocess.Popen[bytes], project: Path) -> None:
    assert "first" in _ran("0")[1]
    (project / "stages/helper.py").write_text("VALUE = 'the second'\n")
    assert "the second" in _ran("0")[1]


def test_a_program_that_is_killed_takes_its_fork_along(server: subprocess.Popen[bytes]) -> None:
    process = _begun("wait")
    assert _forks(server)
    process.kill()
    process.communicate()
    _wait(lambda: not _forks(server))
    assert _ran("0")[0] == 0


def test_signals_reach_the_fork_and_a_killed_fork_is_a_failure(
    server: subprocess.Popen[bytes],
) -> None:
    process = _begun("wait")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130
    assert _ran("die")[0] == 128 + signal.SIGKILL


def test_a_server_that_is_gone_is_one_clear_error_or_no_matter(
    server: subprocess.Popen[bytes],
) -> None:
    process = _begun("wait")
    server.kill()
    server.wait()
    _, error = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "its fork server ended; run `dvc repro` again" in error
    status, out = _ran("0")  # nobody listens any more: the program runs by itself
    assert (status, out.split()[0]) == (0, str(os.getpid()))


def test_a_server_ends_with_dvc_and_ends_what_runs(project: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as dvc:
        servers = _served(dvc.pid)
        process = next(servers)
        dvc.kill()
        dvc.wait()
        assert process.wait(20) == 0
        assert not socket_of(dvc.pid).exists()
        for _ in servers:
            pass


def test_what_a_fork_leaves_behind_keeps_nobody_waiting(server: subprocess.Popen[bytes]) -> None:
    started = time.monotonic()
    assert _ran("leave")[0] == 0
    assert time.monotonic() - started < 15


def test_only_tracking_is_given_mlflow(server: subprocess.Popen[bytes], project: Path) -> None:
    (project / "stages/track_iteration.py").write_text(PROGRAM)
    assert _ran("modules")[1].endswith("False")
    assert _ran("modules", program="rollbook.stages.track_iteration")[1].endswith("True")


def test_exit_handlers_run(server: subprocess.Popen[bytes]) -> None:
    assert _ran("end")[1].endswith("at exit")


def test_an_interrupt_reaches_what_a_fork_has_started(server: subprocess.Popen[bytes]) -> None:
    process = _begun("start")
    _wait(lambda: _running("34.5"))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    _wait(lambda: not _running("34.5"))


def test_closed_standard_files_stay_out_of_the_way(server: subprocess.Popen[bytes]) -> None:
    command = f"{sys.executable} -P -m rollbook.stages.probe 0 <&- >&-"
    environment = {**os.environ, "DVC_STAGE": "probe"}
    ended = subprocess.run(["sh", "-c", f"exec {command}"], env=environment, timeout=20)
    assert ended.returncode == 0
    assert _ran("0")[0] == 0


def _running(seconds: str) -> bool:
    """Whether some process sleeps for exactly so long."""
    return (
        subprocess.run(["pgrep", "-f", f"^sleep {seconds}$"], capture_output=True).returncode == 0
    )
