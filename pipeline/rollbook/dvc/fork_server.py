"""Imports what stage programs need, once per `dvc repro`, and runs each of them in a fork of itself.

Started by `pipeline/rollbook/dvc/fork_client.py`, `python -P -m rollbook.dvc.fork_server <process id of DVC>`; ends
when DVC does. Nothing of the project's own code is passed on to a fork, so that what is edited while DVC runs is read
again, as without a server. Only libraries that survive a fork are imported: polars does not (its threads are left
behind), and nothing here touches CUDA.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import json
import multiprocessing
import os
import runpy
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

from rollbook.core.framework_imports import import_mlflow, import_torch
from rollbook.core.lean_imports import import_pandera
from rollbook.core.process import COLLECT_AFTER, die_with_parent
from rollbook.dvc.fork_client import (
    FOLDER,
    KILLED,
    LENGTH_BYTES,
    PASSED_ON,
    STANDARD_FILES,
    socket_of,
)
from rollbook.dvc.running_steps import is_alive

REQUEST_SECONDS = 30.0
"""A program that asks and then says nothing for so long is left alone."""
OWN_PACKAGES = ("rollbook", "stages")
TRACKER = "track_iteration"
"""The only program that is given MLflow, which is imported here without pandas and polars."""
LIBRARIES = (
    "numpy",
    "pyarrow.compute",
    "pyarrow.parquet",
    "pydantic",
    "ruamel.yaml",
    "jinja2",
    "tokenizers",
    "safetensors",
)


@dataclass(frozen=True)
class _Job:
    """A stage program at work.

    Attributes:
        connection: to the program that DVC started; it waits for the exit status.
        process: the fork that does the work, first of a process group of its own.
        ended: readable when it has ended. Its sentinel would not do: processes that it leaves behind hold that open.
    """

    connection: socket.socket
    process: ForkProcess
    ended: int

    def signal(self, number: int) -> None:
        """Sends a signal to the fork and to what it started, as a terminal does."""
        assert self.process.pid
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


class ForkServer:
    """Listens for stage programs.

    Args:
        dvc: process id of the DVC that it serves.
    """

    def __init__(self, dvc: int) -> None:
        # First, so that it is noticed if DVC ends while libraries are imported.
        self._dvc = os.pidfd_open(dvc)
        self.address = socket_of(dvc)
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX)
        self._jobs: list[_Job] = []

    def serve(self) -> None:
        """Runs what is asked for until DVC has ended."""
        self._listener.bind(os.fspath(self.address))
        self._listener.listen()
        self._selector.register(self._dvc, selectors.EVENT_READ, None)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    return
                key.data()

    def close(self) -> None:
        """Ends what still runs and takes the address away."""
        for job in self._jobs:
            job.signal(signal.SIGKILL)
        self.address.unlink(missing_ok=True)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(REQUEST_SECONDS)
        files: list[int] = []
        try:
            length, files, _, _ = socket.recv_fds(connection, LENGTH_BYTES, len(STANDARD_FILES))
            request = json.loads(_received(connection, int.from_bytes(length, "big")))
        except (OSError, ValueError):  # the program was killed while it asked
            for file in files:
                os.close(file)
            connection.close()
            return
        connection.settimeout(None)
        context = multiprocessing.get_context("fork")
        process = context.Process(target=self._run, args=(request, files, connection))
        process.start()
        assert process.pid
        with contextlib.suppress(OSError):  # the fork does the same; whoever comes first
            os.setpgid(process.pid, process.pid)
        for file in files:
            os.close(file)
        job = _Job(connection, process, os.pidfd_open(process.pid))
        self._jobs.append(job)
        self._watch(job.ended, lambda: self._finish(job))
        self._watch(connection, lambda: self._signal(job))

    def _watch(self, file: int | socket.socket, then: Callable[[], None]) -> None:
        self._selector.register(file, selectors.EVENT_READ, then)

    def _signal(self, job: _Job) -> None:
        """Passes signals on; a program that is gone takes its fork along."""
        if job not in self._jobs:  # it ended in the same moment
            return
        try:
            received = job.connection.recv(16)
        except OSError:
            received = b""
        if not received:
            self._selector.unregister(job.connection)
            job.signal(signal.SIGKILL)
        for number in received:
            if number in PASSED_ON:
                job.signal(number)

    def _finish(self, job: _Job) -> None:
        """Sends the exit status."""
        self._selector.unregister(job.ended)
        os.close(job.ended)
        with contextlib.suppress(KeyError):
            self._selector.unregister(job.connection)
        job.process.join()
        code = job.process.exitcode or 0
        with contextlib.suppress(OSError):
            job.connection.sendall(f"{code if code >= 0 else KILLED - code}\n".encode())
        job.connection.close()
        job.process.close()
        self._jobs.remove(job)

    def _run(self, request: dict[str, Any], files: list[int], connection: socket.socket) -> None:
        """In the fork: becomes the stage program."""
        die_with_parent()
        os.setpgid(0, 0)
        for other in (connection, self._listener, *(job.connection for job in self._jobs)):
            other.close()
        self._selector.close()
        os.close(self._dvc)
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        _become(**request)


def _received(connection: socket.socket, count: int) -> bytes:
    """So many bytes, or fewer if the other end closes.

    Not through a file, which would read ahead: a signal may stand behind the request.
    """
    body = b""
    while len(body) < count and (part := connection.recv(count - len(body))):
        body += part
    return body


def _become(
    module: str, arguments: list[str], environment: dict[str, str], safe_path: bool
) -> None:
    """Runs a module like `python -m` does, with -P if `safe_path`."""
    if not safe_path:
        sys.path.insert(0, str(Path.cwd()))
    os.environ.clear()
    os.environ.update(environment)
    forgotten = OWN_PACKAGES if module.rpartition(".")[2] == TRACKER else (*OWN_PACKAGES, "mlflow")
    for name in [name for name in sys.modules if name.partition(".")[0] in forgotten]:
        del sys.modules[name]
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()  # forks would draw the same numbers
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()  # multiprocessing ends its forks without


def import_libraries() -> None:
    """Imports what stage programs import, the way they do; what is not installed stays out."""
    gc.set_threshold(COLLECT_AFTER)
    import_pandera()
    for name in LIBRARIES:
        importlib.import_module(name)
    import_mlflow()
    with contextlib.suppress(ModuleNotFoundError):
        import_torch()
    gc.collect()
    gc.freeze()  # a collection in a fork would copy the pages of every object


def main(dvc: int) -> None:
    """Serves one DVC process."""
    try:
        server = ForkServer(dvc)
    except ProcessLookupError:
        return
    for left in FOLDER.glob("*.*"):  # by servers that were killed
        if left.stem.isdigit() and not is_alive(int(left.stem)):
            with contextlib.suppress(OSError):
                left.unlink(missing_ok=True)
    import_libraries()
    try:
        server.serve()
    finally:
        server.close()
    server.address.with_suffix(".log").unlink(missing_ok=True)  # kept where this fails


if __name__ == "__main__":
    main(int(sys.argv[1]))
