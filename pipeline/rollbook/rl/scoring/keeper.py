"""The keeper of a scoring process: its parent, which ends all that rewards started when either it or the scorer ends.

The scorer starts a keeper, which forks the scoring process before anything large is imported and does nothing from then
on but wait. As their subreaper (prctl(2)) it inherits what is left of the process's descendants, also those that lead a
session of their own or whose parents have gone, so nothing escapes it. Without subreapers (macOS) the process group is
ended.

A reward that is scored in the main process has no keeper: what it starts and leaves running is its own affair.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from rollbook.core.process import adopt_orphans, die_with_parent

HEARD = (signal.SIGCHLD, signal.SIGTERM)
"""All that a keeper listens to: a child has ended; it is to end, which the kernel says too when the scorer is gone."""
END_SECONDS = 1.5
"""What ending may take. Then something is left that cannot be killed, such as a process of another user."""
LOOK_SECONDS = 0.001


def keep(scorer: int, descriptors: Sequence[int]) -> None:
    """Becomes a keeper and returns in its child, the scoring process; the keeper itself never returns.

    It ends as the scoring process did, by the same signal or exit code, so that the scorer learns it.

    Args:
        scorer: process id; if it is gone already, so is the reason to live.
        descriptors: of the scoring process alone.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    signal.signal(
        signal.SIGCHLD, signal.SIG_DFL
    )  # where it is ignored, children cannot be waited for
    die_with_parent(signal.SIGTERM)
    if os.getppid() != scorer:
        os._exit(0)
    adopt_orphans()
    keeper = os.getpid()
    process = os.fork()
    if process:
        for descriptor in descriptors:
            os.close(descriptor)
        _end_like(_keep(process))
    os.setpgid(0, 0)  # a reward that ends its group does not end the keeper
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    die_with_parent()
    if os.getppid() != keeper:
        os._exit(0)


def _keep(process: int) -> int:
    """Waits, ends all that is left, and says how `process` ended."""
    ends: dict[int, int] = {}
    while process not in ends and signal.sigwait(HEARD) != signal.SIGTERM:
        ends |= _reaped()
    with contextlib.suppress(OSError):
        os.killpg(process, signal.SIGKILL)
    deadline = time.monotonic() + END_SECONDS
    while (left := _children()) and time.monotonic() < deadline:
        for child in left:
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)
        ends |= _reaped()
        time.sleep(LOOK_SECONDS)
    return ends.get(process, signal.SIGKILL)


def _reaped() -> dict[int, int]:
    """Wait statuses of the children that have ended, by process id."""
    ends = {}
    with contextlib.suppress(ChildProcessError):
        while (end := os.waitpid(-1, os.WNOHANG))[0]:
            ends[end[0]] = end[1]
    return ends


def _children() -> list[int]:
    """Children, inherited ones included; none where the kernel does not list them."""
    try:
        listing = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    except OSError:
        return []
    return [int(child) for child in listing.split()]


def _end_like(status: int) -> NoReturn:
    """Ends this process with the wait status of another."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the core of interest has been written
        with contextlib.suppress(OSError):  # SIGKILL, which needs no preparation
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))
