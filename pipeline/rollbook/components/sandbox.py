"""Runs programs that nobody trusts, under bubblewrap (`bwrap`): no network, no files, no way to last.

A program sees its interpreter's standard library, shared libraries, the files it is given and a small `/tmp`; no home,
no repository, no `/proc`, no environment. It runs in namespaces of its own, under resource limits, as a user of its
own. All its processes are gone when `run` returns.

Started by root, bubblewrap cannot help against fork bombs: Linux counts no processes of root. The program then gets a
user id that nobody else has instead of a user namespace. The limit counts per sandbox since Linux 5.14.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from typing import IO

from rollbook.components.syscall_filter import filter_program
from rollbook.core.errors import RewardError

MEGABYTE = 1 << 20
START_SECONDS = 30.0
"""How long a sandbox may take to start on a machine that is busy; some 20 ms otherwise."""
FIRST_USER = 0x60000000
"""User ids of sandboxes that root starts begin here; no account has them."""
READ_BYTES = 1 << 16
INSTALL = "install it: `apt-get install bubblewrap` (Debian, Ubuntu), `dnf install bubblewrap` (Fedora); Linux only"

BOOT = """
import json, os, resource, sys
job = json.loads(sys.argv[1])
if job["user"]:
    os.setgroups([])
    os.setgid(job["user"])
    os.setuid(job["user"])
for kind, value in job["limits"]:
    resource.setrlimit(kind, (value, value))
os.write(job["started"], b"+")
for fd in set(range(3, job["files"])) - set(job["pipes"]):
    try:
        os.close(fd)
    except OSError:
        pass
sys.argv = job["argv"]
if not sys.argv[0].endswith(".py"):
    os.execv(sys.argv[0], sys.argv)
sys.path.insert(0, job["library"])
import builtins
builtins.exit = builtins.quit = sys.exit
source = open(sys.argv[0], "rb").read()
del job
exec(compile(source, sys.argv[0], "exec"), globals())
"""
"""The first thing in a sandbox: gives up its user, limits itself and becomes the program."""


@dataclass(frozen=True)
class Limits:
    """What a program may use.

    Attributes:
        seconds: of wall-clock time, its start not counted; then everything it started is killed.
        cpu_seconds: of processor time for each process.
        memory_mb: of address space for each process, so `processes` times as much together.
        processes: processes and threads at a time.
        file_mb: size of one file.
        scratch_mb: size of all files in `/tmp`.
        output_bytes: of standard output and of standard error; a program that writes more is killed.
        open_files: at a time, for each process.
    """

    seconds: float = 10.0
    cpu_seconds: int = 10
    memory_mb: int = 512
    processes: int = 8
    file_mb: int = 16
    scratch_mb: int = 32
    output_bytes: int = MEGABYTE
    open_files: int = 64


@dataclass(frozen=True)
class Job:
    """One program.

    Attributes:
        argv: a `.py` file or an executable, as the sandbox sees it, and arguments.
        stdin: what it reads.
        files: content of files by absolute path, read-only.
        host_files: files of this machine by the absolute path that the program sees them under, read-only.
        pipes: open file descriptors it inherits under the same numbers; `run` closes them here.
    """

    argv: Sequence[str]
    stdin: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict)
    host_files: Mapping[str, Path] = field(default_factory=dict)
    pipes: Sequence[int] = ()


@dataclass(frozen=True)
class Outcome:
    """How a program ended.

    Attributes:
        exit_code: its own, or 128 + the signal that ended it; None if it was killed from outside.
        stdout, stderr: what it wrote, cut at the limit.
        timed_out: it was killed because its time was over.
        too_much_output: it was killed because it wrote more than allowed.
    """

    exit_code: int | None
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    too_much_output: bool = False


LIBRARY = "/harness"
"""Folder of a sandbox that Python programs import from."""


def run(job: Job, limits: Limits, beside: Sequence[Job] = ()) -> Outcome:
    """Runs a program to its end, and others beside it for as long; returns when all their processes are gone.

    The pipes of all jobs are closed here, whatever happens: a program must notice when the other one is gone.

    Raises:
        RewardError: if a sandbox cannot be started. What the program does is never an error.
    """
    with contextlib.ExitStack() as closing, contextlib.ExitStack() as stack:
        for pipe in [pipe for each in (job, *beside) for pipe in each.pipes]:
            closing.callback(os.close, pipe)
        first = stack.enter_context(_Sandbox(job, limits).running())
        others = [stack.enter_context(_Sandbox(other, limits).running()) for other in beside]
        closing.close()
        with selectors.DefaultSelector() as selector:
            for sandbox in (first, *others):
                sandbox.register(selector)
            # Another one that never started must not look like one that had nothing to say.
            while not (first.ended and all(each.started or each.ended for each in others)):
                due = min(sandbox.deadline for sandbox in (first, *others) if not sandbox.ended)
                for key, _ in selector.select(max(0.0, due - time.monotonic())):
                    if key.fileobj in selector.get_map():
                        key.data(selector)
                for sandbox in (first, *others):
                    if not sandbox.ended and time.monotonic() >= sandbox.deadline:
                        sandbox.kill(timed_out=True)
                        sandbox.unregister(selector)
        for sandbox in (first, *others):
            sandbox.kill()
            sandbox.drain()
    for sandbox in (first, *others):
        sandbox.check_started()
    return first.outcome()


@cache
def bubblewrap() -> str:
    """Path of `bwrap`.

    Raises:
        RewardError: if it is not installed; nothing is ever run without it.
    """
    found = shutil.which("bwrap") if sys.platform == "linux" else None
    if found is None:
        raise RewardError(
            "`bwrap` (bubblewrap), which runs code of a model safely, is missing", INSTALL
        )
    return found


class _Sandbox:
    """One bubblewrap process and what it says."""

    def __init__(self, job: Job, limits: Limits) -> None:
        self.job = job
        self.limits = limits
        self.deadline = time.monotonic() + START_SECONDS
        self.ended = False
        self.started = False
        self.timed_out = False
        self.too_much_output = False
        self.to_write = memoryview(job.stdin)
        self.written = {"stdout": bytearray(), "stderr": bytearray()}
        self.info = bytearray()
        self.init: int | None = None
        self.exit_code: int | None = None

    @contextlib.contextmanager
    def running(self) -> Iterator[_Sandbox]:
        """Starts the program; at the end all its processes are killed and waited for, and all files closed."""
        with contextlib.ExitStack() as stack:
            info, info_end = _pipe(stack)
            started, started_end = _pipe(stack)
            calls = _in_memory(stack, filter_program())
            contents = {path: _in_memory(stack, text) for path, text in self.job.files.items()}
            self.process = subprocess.Popen(
                self._command(contents, info_end.fileno(), started_end.fileno(), calls),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[
                    *(*contents.values(), calls, *self.job.pipes),
                    *(info_end.fileno(), started_end.fileno()),
                ],
                env={},
                cwd="/",
                close_fds=True,
            )
            stack.callback(self._gone)
            self.stdin = self.process.stdin
            info_end.close()
            started_end.close()
            self.streams = {
                name: stream.fileno()
                for name, stream in {
                    "stdout": self.process.stdout,
                    "stderr": self.process.stderr,
                    "info": info,
                    "started": started,
                }.items()
                if stream is not None
            }
            self.exit = os.pidfd_open(self.process.pid)
            stack.callback(os.close, self.exit)
            yield self

    def register(self, selector: selectors.BaseSelector) -> None:
        """Listens to everything it says."""
        assert self.stdin
        for fd in (self.stdin.fileno(), *self.streams.values()):
            os.set_blocking(fd, False)
        for name, fd in self.streams.items():
            selector.register(fd, selectors.EVENT_READ, lambda s, name=name: self._read(s, name))
        selector.register(self.exit, selectors.EVENT_READ, self._exited)
        selector.register(self.stdin.fileno(), selectors.EVENT_WRITE, self._write)

    def unregister(self, selector: selectors.BaseSelector) -> None:
        """Stops listening."""
        waited_for = [*self.streams.values(), self.exit]
        if self.stdin:
            waited_for.append(self.stdin.fileno())
        for fd in waited_for:
            if fd in selector.get_map():
                selector.unregister(fd)

    def kill(self, timed_out: bool = False) -> None:
        """Ends the first process of its namespace; the kernel ends all others with it, and this waits for that."""
        if not self.ended:
            self.timed_out = timed_out
        self.ended = True
        self._take_info()
        if self.init is None:
            self.process.kill()
        else:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.init, signal.SIGKILL)
            # A pidfd is readable once the process and, for the first of a namespace, all others in it are dead.
            with selectors.DefaultSelector() as selector:
                selector.register(self.init, selectors.EVENT_READ)
                selector.select()
        self.process.wait()

    def drain(self) -> None:
        """Reads what was written before the end; nobody is left who could write more."""
        for name in self.written:
            while not self.too_much_output and (part := _read_part(self.streams[name])):
                self._take(name, part)
        self.started = self.started or bool(_read_part(self.streams["started"]))

    def check_started(self) -> None:
        """Raises RewardError if the program was never reached."""
        if not self.started:
            said = self.written["stderr"].decode(errors="replace").strip()[-200:]
            raise RewardError(
                f"the sandbox did not start: {said or f'no answer in {START_SECONDS:.0f} s'}",
                "bubblewrap 0.8 and Linux 5.14 or newer are needed, and user namespaces must be allowed",
            )

    def outcome(self) -> Outcome:
        """How the program ended."""
        return Outcome(
            None if self.timed_out or self.too_much_output else self.exit_code,
            bytes(self.written["stdout"]),
            bytes(self.written["stderr"]),
            self.timed_out,
            self.too_much_output,
        )

    def _gone(self) -> None:
        self.kill()
        for stream in (self.stdin, self.process.stdout, self.process.stderr):
            if stream:
                stream.close()
        if self.init is not None:
            os.close(self.init)
            self.init = None

    def _take_info(self) -> None:
        if self.init is None:
            while part := _read_part(self.streams["info"]):
                self.info += part
            number = self.info.partition(b'"child-pid":')[2].partition(b",")[0].strip(b" \n}")
            if number.isdigit():
                with contextlib.suppress(ProcessLookupError):
                    self.init = os.pidfd_open(int(number))

    def _read(self, selector: selectors.BaseSelector, name: str) -> None:
        part = _read_part(self.streams[name])
        if not part:
            selector.unregister(self.streams[name])
        elif name == "info":
            self.info += part
            self._take_info()
        elif name == "started":
            self.started = True
            self.deadline = time.monotonic() + self.limits.seconds
        else:
            self._take(name, part)
            if self.too_much_output:
                self.kill()
                self.unregister(selector)

    def _take(self, name: str, part: bytes) -> None:
        free = self.limits.output_bytes - len(self.written[name])
        self.written[name] += part[:free]
        self.too_much_output = self.too_much_output or len(part) > free

    def _write(self, selector: selectors.BaseSelector) -> None:
        assert self.stdin
        fd = self.stdin.fileno()
        try:
            self.to_write = self.to_write[os.write(fd, self.to_write[:READ_BYTES]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # it does not want to know
            self.to_write = self.to_write[:0]
        if not self.to_write:
            selector.unregister(fd)
            self.stdin.close()
            self.stdin = None

    def _exited(self, selector: selectors.BaseSelector) -> None:
        self.exit_code = self.process.wait()
        self.ended = True
        self.unregister(selector)

    def _command(
        self, contents: Mapping[str, int], info: int, started: int, calls: int
    ) -> list[str]:
        limits = self.limits
        as_root = _counts_no_processes()
        view = _system_view()
        for path, fd in contents.items():
            view += [*_folders_of(path), "--perms", "0444", "--file", str(fd), path]
        for path, source in self.job.host_files.items():
            view += [*_folders_of(path), "--ro-bind", str(source), path]
        job = {
            "argv": list(self.job.argv),
            "user": FIRST_USER + secrets.randbelow(1 << 28) if as_root else 0,
            "limits": [
                (resource.RLIMIT_AS, limits.memory_mb * MEGABYTE),
                (resource.RLIMIT_CPU, limits.cpu_seconds),
                (resource.RLIMIT_NPROC, limits.processes),
                (resource.RLIMIT_FSIZE, limits.file_mb * MEGABYTE),
                (resource.RLIMIT_NOFILE, limits.open_files),
                (resource.RLIMIT_CORE, 0),
                (resource.RLIMIT_MEMLOCK, 0),
                (resource.RLIMIT_MSGQUEUE, 0),
            ],
            "started": started,
            "files": max([*contents.values(), info, started, calls, *self.job.pipes]) + 1,
            "pipes": list(self.job.pipes),
            "library": LIBRARY,
        }
        return [
            bubblewrap(),
            *(AS_ROOT if as_root else AS_USER),
            *("--die-with-parent", "--new-session", "--clearenv", "--info-fd", str(info)),
            *("--seccomp", str(calls)),
            *view,
            *("--perms", "1777", "--size", str(limits.scratch_mb * MEGABYTE), "--tmpfs", "/tmp"),
            *("--chdir", "/tmp", "--remount-ro", "/", "--", _interpreter()),
            *("-I", "-S", "-c", BOOT, json.dumps(job)),
        ]


LIBRARY_CACHE = "/etc/ld.so.cache"
"""Where the loader finds shared libraries outside of the usual folders, such as Python's in a container image."""
AS_USER = (
    *("--unshare-all", "--unshare-user", "--disable-userns"),
    *("--uid", "65534", "--gid", "65534", "--cap-drop", "ALL"),
)
AS_ROOT = (
    *("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
    *("--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"),
)


@cache
def _counts_no_processes() -> bool:
    """Whether this process is root of the machine, not of a user namespace."""
    if os.geteuid() != 0:
        return False
    return Path("/proc/self/uid_map").read_text().split() == ["0", "0", str((1 << 32) - 1)]


@cache
def _interpreter() -> str:
    return os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)


def _system_view() -> list[str]:
    """Arguments that show what Python needs of this machine, and no more; installed packages are hidden."""
    view = ["--perms", "0755", "--dir", "/dev"]
    for device in ("/dev/null", "/dev/urandom"):
        view += ["--dev-bind", device, device]
    for folder in map(Path, ("/usr/lib", "/usr/lib64", "/lib", "/lib64")):
        if folder.is_symlink():
            view += ["--symlink", str(folder.readlink()), str(folder)]
        elif folder.is_dir():
            view += [*_folders_of(str(folder)), "--ro-bind", str(folder), str(folder)]
    if Path(LIBRARY_CACHE).is_file():
        view += [*_folders_of(LIBRARY_CACHE), "--ro-bind", LIBRARY_CACHE, LIBRARY_CACHE]
    paths = sysconfig.get_paths()
    standard = {str(Path(paths["stdlib"]).resolve()), _base_platform_library()}
    shared = Path(sys.base_prefix) / "lib" / str(sysconfig.get_config_var("INSTSONAME") or "")
    for path in (*sorted(standard), _interpreter(), str(shared) if shared.is_file() else ""):
        if path and not path.startswith("/usr/lib/"):
            view += [*_folders_of(path), "--ro-bind", path, path]
    for folder in (
        *(Path(path, name) for path in standard for name in ("site-packages", "dist-packages")),
        Path("/usr/lib/python3/dist-packages"),
    ):
        if folder.is_dir():
            view += ["--tmpfs", str(folder), "--remount-ro", str(folder)]
    return view


def _base_platform_library() -> str:
    return str(
        Path(sysconfig.get_path("platstdlib", vars={"platbase": sys.base_exec_prefix})).resolve()
    )


def _folders_of(path: str) -> list[str]:
    """Arguments that make the folders above `path`; bubblewrap's own would be closed to a user of the sandbox."""
    arguments = []
    for folder in [*reversed(PurePosixPath(path).parents)][1:]:
        arguments += ["--perms", "0755", "--dir", str(folder)]
    return arguments


def _pipe(stack: contextlib.ExitStack) -> tuple[IO[bytes], IO[bytes]]:
    """A pipe's read and write end, both closed at the end at the latest."""
    reading, writing = os.pipe()
    return (
        stack.enter_context(os.fdopen(reading, "rb", 0)),
        stack.enter_context(os.fdopen(writing, "wb", 0)),
    )


def _in_memory(stack: contextlib.ExitStack, content: bytes) -> int:
    """A file without a name that holds `content`."""
    fd = os.memfd_create("file")
    stack.callback(os.close, fd)
    with os.fdopen(os.dup(fd), "wb") as stream:
        stream.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _read_part(fd: int) -> bytes:
    """What there is to read, at most; empty at the end or if there is nothing now."""
    try:
        return os.read(fd, READ_BYTES)
    except BlockingIOError:
        return b""
