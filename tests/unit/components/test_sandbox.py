"""What a hostile program can do in a sandbox: nothing that lasts, and nothing outside."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollbook.components import sandbox
from rollbook.components.sandbox import Job, Limits, Outcome, run
from rollbook.core.errors import RewardError
from tests.processes import nothing_left

ROOT = Path(__file__).parents[3]
QUICK = Limits(seconds=2.0, cpu_seconds=1, processes=8, scratch_mb=8, file_mb=4, memory_mb=256)
FOUR_PROCESSES = "import os, time\nos.fork()\nos.fork()\ntime.sleep(100)"


def program(source: str, *arguments: str, stdin: bytes = b"") -> Job:
    """A job that runs `source`."""
    return Job(["/program.py", *arguments], stdin, {"/program.py": source.encode()})


def ran(source: str, limits: Limits = QUICK, stdin: bytes = b"") -> Outcome:
    return run(program(source, stdin=stdin), limits)


def processes_with(mark: str) -> list[int]:
    """Processes of this machine with `mark` in their command line."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No test may leave an open file, socket or child."""
    with nothing_left():
        yield


@pytest.fixture(params=["as whoever runs this", "as a user"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox for root and one for everybody else."""
    if request.param == "as a user":
        monkeypatch.setattr(sandbox, "_counts_no_processes", lambda: False)


def test_a_program_runs(by: None) -> None:
    outcome = ran(
        "import sys; print(input()); print('e', file=sys.stderr); exit(3)", stdin=b"hello"
    )
    assert outcome == Outcome(3, b"hello\n", b"e\n")


def test_large_input_and_output_do_not_block() -> None:
    data = b"x" * 900_000
    source = "import sys; d = sys.stdin.read(); sys.stderr.write(d); sys.stdout.write(d)"
    outcome = ran(source, stdin=data)
    assert (outcome.stdout, outcome.stderr) == (data, data)


def test_input_that_is_not_read_is_no_error() -> None:
    assert ran("pass", stdin=b"x" * 900_000).exit_code == 0


@pytest.mark.parametrize(
    "path",
    [
        str(Path.home()),
        str(ROOT / "pyproject.toml"),
        "/etc/passwd",
        "/proc/self/environ",
        "/proc/1/root",
        "/sys",
        "/dev/shm",
        "/usr/bin/env",
        str(Path(pytest.__file__).parent),
    ],
)
def test_files_of_the_machine_are_not_there(by: None, path: str) -> None:
    source = (
        "import os\n"
        f"path = {path!r}\n"
        "print(os.path.isfile(path) or (os.path.isdir(path) and bool(set(os.listdir(path)) - {'.pyenv', '.local'})))\n"
        "os.symlink(path, '/tmp/link')\n"
        "try: print(bool(open('/tmp/link').read()))\n"
        "except OSError: print(False)\n"
    )
    assert ran(source).stdout == b"False\nFalse\n"


def test_no_environment_and_no_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    source = """
import os
files = []
for fd in range(200):
    try:
        os.fstat(fd)
        files.append(fd)
    except OSError:
        pass
print('SECRET' in os.environ, files, os.getuid() != 0)
"""
    assert ran(source).stdout == b"False [0, 1, 2] True\n"


@pytest.mark.parametrize(
    "path", ["/x", "/dev/x", "/dev/null/x", "/usr/lib/x", "/program.py", os.__file__]
)
def test_only_tmp_can_be_written(by: None, path: str) -> None:
    source = f"try: open({path!r}, 'r+' if {path!r}.endswith('.py') else 'w')\nexcept OSError: print('no')"
    assert ran(source).stdout == b"no\n"


@pytest.mark.parametrize(
    "call",
    [
        "socket.create_connection(('127.0.0.1', {port}), 1)",
        "socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)",
        "socket.socket(socket.AF_UNIX)",
        "socket.getaddrinfo('example.org', 80)",
    ],
)
def test_no_network(call: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        call = call.format(port=server.getsockname()[1])
        assert ran(f"import socket\ntry: {call}\nexcept OSError: print('no')").stdout == b"no\n"


@pytest.mark.parametrize(
    "call",
    [
        "libc.unshare(0x10000000)",  # CLONE_NEWUSER
        "libc.mount(b't', b'/tmp', b'tmpfs', 0, 0)",
        "libc.memfd_create(b'x', 0)",
        "libc.shmget(0, 4096, 0o1600)",
        "libc.ptrace(0, 0, 0, 0)",
        "libc.syscall({clone}, 0x10000011, 0, 0, 0, 0)",  # clone with CLONE_NEWUSER
        "libc.syscall(435, 0, 0)",  # clone3
        "libc.syscall(425, 1, 0)",  # io_uring_setup
        "libc.setuid(0)",
        "libc.setns(0, 0)",
    ],
)
def test_system_calls_that_reach_further_are_refused(by: None, call: str) -> None:
    clone = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
    source = (
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        f"print({call.format(clone=clone)}, ctypes.get_errno() in (1, 22, 38))"
    )
    assert ran(source).stdout == b"-1 True\n"


def test_limits_cannot_be_raised() -> None:
    source = """
import resource
for name in ('AS', 'CPU', 'NPROC', 'FSIZE', 'NOFILE', 'CORE'):
    kind = getattr(resource, 'RLIMIT_' + name)
    try:
        resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print(name)
    except (ValueError, OSError):
        pass
"""
    assert ran(source).stdout == b""


def test_an_endless_loop_ends() -> None:
    started = time.monotonic()
    loop = ran("while True: pass")
    # On a busy machine the clock strikes before the processor time is used up.
    assert loop.timed_out or loop.exit_code in (128 + signal.SIGKILL, 128 + signal.SIGXCPU)
    assert ran("import time; time.sleep(100)").timed_out
    assert time.monotonic() - started < 20


def test_a_fork_bomb_is_contained() -> None:
    source = """
import os, time
count = 0
try:
    while True:
        if not os.fork():
            time.sleep(100)
        count += 1
except OSError:
    print(count < 8)
"""
    assert ran(source).stdout == b"True\n"


def test_threads_count_as_processes() -> None:
    source = """
import threading, time
try:
    for _ in range(100):
        threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
except RuntimeError:
    print('no')
"""
    assert ran(source).stdout == b"no\n"


def test_memory_and_disk_bombs_fail() -> None:
    memory = "try: b'0' * 10**9\nexcept MemoryError: print('no')"
    one_file = "try: open('/tmp/x', 'wb').write(b'0' * 5_000_000)\nexcept OSError: print('no')"
    files = "try:\n for n in range(9): open(f'/tmp/{n}', 'wb').write(b'0' * 2**20)\nexcept OSError: print('no')"
    assert [ran(source).stdout for source in (memory, one_file, files)] == [b"no\n"] * 3


@pytest.mark.parametrize("stream", [1, 2])
def test_output_without_end_is_cut_and_ended(stream: int) -> None:
    limits = Limits(seconds=5, cpu_seconds=5, output_bytes=100_000)
    outcome = ran(f"import os\nwhile True: os.write({stream}, b'x' * 50_000)", limits)
    assert outcome.too_much_output
    assert outcome.exit_code is None
    assert len(outcome.stdout) + len(outcome.stderr) == 100_000


def test_output_at_the_very_end_is_bounded_too() -> None:
    limits = Limits(output_bytes=10)
    outcome = ran("import os; os.write(1, b'x' * 11)", limits)
    assert outcome.too_much_output
    assert outcome.stdout == b"x" * 10


@pytest.mark.parametrize(
    "source",
    [
        "import os, time\nif not os.fork():\n os.setsid(); time.sleep(1000)",
        "import os, time\nif not os.fork():\n os.closerange(0, 99); time.sleep(1000)",
        "import os, time\nif not os.fork():\n  if not os.fork(): time.sleep(1000)\n  os._exit(0)",
        "import os, signal, time\nfor s in range(1, 32):\n  try: signal.signal(s, signal.SIG_IGN)\n"
        "  except OSError: pass\nos.fork()\ntime.sleep(1000)",
        "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass",
    ],
    ids=["session", "closed", "orphan", "deaf", "bomb"],
)
def test_no_process_outlives(source: str) -> None:
    mark = uuid.uuid4().hex
    run(program(source, mark), Limits(seconds=0.5, cpu_seconds=2))
    assert processes_with(mark) == []


def test_signals_reach_nobody_else() -> None:
    source = """
import os, signal
for target in (os.getppid(), 1, -1, 0):
    try:
        os.kill(target, signal.SIGTERM if target else 0)
        os.kill(target, signal.SIGKILL if target != 0 else 0)
    except OSError:
        pass
print('alive')
"""
    parent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert ran(source).stdout == b"alive\n"
        assert parent.poll() is None
    finally:
        parent.kill()
        parent.communicate()


def test_killing_the_scorer_kills_the_sandbox() -> None:
    mark = uuid.uuid4().hex
    code = (
        "from tests.unit.components.test_sandbox import *\n"
        f"run(program({FOUR_PROCESSES!r}, {mark!r}), Limits(seconds=60, cpu_seconds=60))"
    )
    scorer = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    deadline = time.monotonic() + 30
    try:
        while len(processes_with(mark)) < 6 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(processes_with(mark)) >= 6
    finally:
        scorer.kill()
        scorer.wait()
    while processes_with(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_with(mark) == []


def test_two_programs_are_connected_and_end_together() -> None:
    mark = uuid.uuid4().hex
    here, there = os.pipe()
    asking = Job(
        ["/program.py"],
        files={"/program.py": f"import os; print(os.read({here}, 9))".encode()},
        pipes=[here],
    )
    source = f"import os, time; os.write({there}, b'hi'); time.sleep(1000)"
    answering = Job(["/program.py", mark], files={"/program.py": source.encode()}, pipes=[there])
    assert run(asking, QUICK, beside=[answering]).stdout == b"b'hi'\n"
    assert processes_with(mark) == []


def test_a_program_notices_when_the_other_one_is_gone() -> None:
    here, there = os.pipe()
    source = f"import os; print(os.read({here}, 9))"
    asking = Job(["/program.py"], files={"/program.py": source.encode()}, pipes=[here])
    gone = Job(["/program.py"], files={"/program.py": b"pass"}, pipes=[there])
    assert run(asking, QUICK, beside=[gone]).stdout == b"b''\n"


def test_another_one_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    broken = Job(["/program.py"], host_files={"/program.py": tmp_path / "missing"})
    with pytest.raises(RewardError, match="did not start"):
        run(program("pass"), QUICK, beside=[broken])


def test_without_bubblewrap_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    sandbox.bubblewrap.cache_clear()
    try:
        with pytest.raises(RewardError, match="missing") as raised:
            ran("pass")
        assert "apt-get install bubblewrap" in raised.value.hint
    finally:
        sandbox.bubblewrap.cache_clear()


def test_a_sandbox_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    job = Job(["/program.py"], host_files={"/program.py": tmp_path / "missing"})
    with pytest.raises(RewardError, match=r"did not start: bwrap: Can't find source path"):
        run(job, QUICK)
    pretending = ran("import sys; print('bwrap: broken', file=sys.stderr); exit(1)")
    assert pretending == Outcome(1, b"", b"bwrap: broken\n")
