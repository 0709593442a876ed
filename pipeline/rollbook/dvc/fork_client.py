"""A stage program handed over to the fork server of this `dvc repro`, which has imported torch and the rest already.

Importing torch, transformers and MLflow takes every stage program seconds, whatever it does then. One process per
`dvc repro` (`pipeline/rollbook/dvc/fork_server.py`) imports them once; a stage program that finds it sends its
arguments, its environment and its open files there, and a fork of that process does the work. Without a server a
program runs by itself, with the same results.

A request is a JSON object behind its length (4 bytes) and the three standard files; the answer is one line with the
exit status. A byte on the way is a signal to pass on, and a connection that closes kills the fork, so that it lives no
longer than the program that DVC started.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import IO

from rollbook.core.process import started_module
from rollbook.core.scratch import SCRATCH

FOLDER = SCRATCH / "fork_server"
"""As sockets have names of 107 bytes at most, it is used as it stands, from the root of the project."""
MODULE = "rollbook.dvc.fork_server"
LENGTH_BYTES = 4
STAGES = ("rollbook.stages.", "stages.")
"""How modules of stage programs begin: now, and before they were part of `rollbook`."""
UNSERVED = ("score_rollouts", "rescore_rollouts")
"""They run rewards of the user's, which may want libraries as a process of their own finds them. `evaluate_policy` runs
a scorer too, but beside a policy, for which it imports torch and transformers itself in the same way."""
STANDARD_FILES = (0, 1, 2)
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
KILLED = 128
"""Exit statuses above are 128 + signal, as in a shell."""


def socket_of(dvc: int) -> Path:
    """Where the fork server of a DVC process listens, once it has imported all.

    Args:
        dvc: its process id.
    """
    return FOLDER / f"{dvc}.sock"


def start_server() -> None:
    """Starts the fork server of the DVC process that runs this program, if there is none; it ends with DVC."""
    if sys.platform != "linux" or not _is_served():
        return
    dvc = os.getppid()
    with contextlib.suppress(OSError), _new_log(dvc) as log:
        quiet = subprocess.DEVNULL
        command = [sys.executable, "-P", "-m", MODULE, str(dvc)]
        subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=log, start_new_session=True)


def _new_log(dvc: int) -> IO[str]:
    """What marks that a server was started for this DVC.

    Raises:
        OSError: if there is one already, or the folder cannot be written.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    return (FOLDER / f"{dvc}.log").open("x")


def run_forked() -> None:
    """Runs this program, `python -P -m rollbook.stages.<name> …`, in a fork of the server and ends with its exit
    status.

    Returns if DVC did not start it or there is no server.
    """
    if not _is_served():
        return
    for number in STANDARD_FILES:
        try:
            os.fstat(number)
        except OSError:  # closed; the socket would take its place
            os.open(os.devnull, os.O_RDWR)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(os.fspath(socket_of(os.getppid())))
    except OSError:
        connection.close()
        return
    module, arguments = started_module()
    request = {
        "module": module,
        "arguments": arguments,
        "environment": dict(os.environ),
        "safe_path": sys.flags.safe_path,
    }
    body = json.dumps(request).encode()
    for number in PASSED_ON:
        signal.signal(number, lambda received, _: _pass_on(connection, received))
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)  # no signal inside of the request
        length = len(body).to_bytes(LENGTH_BYTES, "big")
        socket.send_fds(connection, [length], list(STANDARD_FILES))
        connection.sendall(body)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        with connection.makefile("r") as answer:
            status = answer.readline()
    except OSError:
        status = ""
    if not status:
        print(
            f"{module}: its fork server ended; run `dvc repro` again "
            "(`runtime: {fork_server: false}` does without it)",
            file=sys.stderr,
        )
    os._exit(int(status or 1))


def is_fork() -> bool:
    """Whether this process is a fork of a server."""
    return started_module()[0] == MODULE


def is_started_by_dvc() -> bool:
    """Whether this process is what DVC started: `python -P -m rollbook.stages.<name>`, and not a fork or a worker of
    such."""
    return "DVC_STAGE" in os.environ and started_module()[0].startswith(STAGES)


def _is_served() -> bool:
    return is_started_by_dvc() and started_module()[0].rpartition(".")[2] not in UNSERVED


def _pass_on(connection: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):
        connection.send(bytes([number]))
