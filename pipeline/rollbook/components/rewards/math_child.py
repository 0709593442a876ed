"""Comparisons in a process of their own, which is ended when one takes too long; correct in any thread or process.

One child per process, started at the first comparison and used for all that follow, a lock around each. It ends with
its parent, or when its input closes. A forked process starts its own.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollbook.components.rewards import math_equality
from rollbook.core.errors import RewardError

ROOT = Path(__file__).parents[3]
START_SECONDS = 120.0
WAIT_FACTOR, WAIT_SECONDS = 20.0, 60.0
"""Waited for an answer: the limit counts processor time, which on a busy machine takes longer."""
ATTEMPTS = 2
"""A child dies with the thread that started it, so one that is killed is given a second chance."""
REFUSED_KEPT = 1_000


@dataclass(frozen=True)
class Equality:
    """What a comparison found.

    Attributes:
        equal: whether the answer equals the reference.
        answer: the answer as written, shortened; None where there is none or it took too long.
        reason: why nothing was compared.
    """

    equal: bool
    answer: str | None = None
    reason: str | None = None


class _EndedError(Exception):
    """The child ended; `args[0]` is its exit code."""


class _Child:
    """The running program."""

    def __init__(self) -> None:
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", math_equality.__name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            # A fixed hash seed: the order of sets decides how SymPy goes about a comparison.
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0"},
        )
        self.unread = b""
        try:
            failure = self.receive(START_SECONDS).get("failure")
        except _EndedError as ended:
            failure = f"its process ended with code {ended.args[0]}"
        if failure is not None:
            self.close()
            raise RewardError(
                f"answers cannot be compared: {failure}", "pip install -c requirements.lock -e ."
            )

    def send(self, request: dict[str, Any]) -> None:
        data = memoryview(json.dumps(request).encode() + b"\n")
        assert self.process.stdin is not None
        try:
            while data:
                data = data[self.process.stdin.write(data) :]
        except BrokenPipeError:
            raise _EndedError(self.process.wait()) from None

    def receive(self, seconds: float) -> dict[str, Any]:
        """The next answer.

        Raises:
            _EndedError: if the child ends before it.
            RewardError: if neither comes within `seconds`.
        """
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN | select.POLLHUP)
        deadline = time.monotonic() + seconds
        while b"\n" not in self.unread:
            if not waiting.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise RewardError(f"the comparison did not answer in {seconds:.0f} s")
            data = os.read(descriptor, 65536)
            if not data:
                raise _EndedError(self.process.wait())
            self.unread += data
        line, _, self.unread = self.unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self.process.wait()


class _Comparisons:
    """The child of this process, and the references it could not cope with."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.child: _Child | None = None
        self.refused: dict[tuple[str, float], str] = {}

    def close(self) -> None:
        if self.child is not None:
            self.child.close()
            self.child = None

    def compare(self, request: dict[str, Any]) -> Equality:
        reference = (request["reference"], request["limit"])
        if reference not in self.refused:
            failure, verdict = self._asked(request)
            if failure is None:
                return verdict
            while len(self.refused) >= REFUSED_KEPT:
                del self.refused[next(iter(self.refused))]
            self.refused[reference] = failure
        raise RewardError(
            f"the reference answer {reference[0][:60]!r} cannot be compared: {self.refused[reference]}"
        )

    def _asked(self, request: dict[str, Any]) -> tuple[str | None, Equality]:
        """What is wrong with the reference, or the verdict."""
        seconds = WAIT_SECONDS + WAIT_FACTOR * request["limit"]
        reason = ""
        for _ in range(ATTEMPTS):
            about_reference = True
            try:
                self.child = self.child or _Child()
                self.child.send(request)
                if (failure := self.child.receive(seconds)["failure"]) is not None:
                    return failure, Equality(False)
                about_reference = False
                return None, Equality(**self.child.receive(seconds))
            except _EndedError as ended:
                self.close()
                reason = _why(ended.args[0], request["limit"])
                if ended.args[0] == -signal.SIGPROF:
                    break
            except BaseException:  # an interrupt between two lines would shift all later answers
                self.close()
                raise
        return (
            (reason, Equality(False)) if about_reference else (None, Equality(False, None, reason))
        )


def _why(code: int, limit: float) -> str:
    if code == -signal.SIGPROF:
        return f"took longer than {limit:g} s"
    return f"the comparison ended with code {code}"


_comparisons = _Comparisons()


def _start_anew() -> None:
    """A forked child has its parent's pipes and must not use them."""
    global _comparisons
    _comparisons = _Comparisons()


os.register_at_fork(after_in_child=_start_anew)
atexit.register(lambda: _comparisons.close())


def start() -> None:
    """Starts the child, which takes a second, if there is none.

    Raises:
        RewardError: if the library is missing.
    """
    with _comparisons.lock:
        _comparisons.child = _comparisons.child or _Child()


def compare(reference: str, text: str, boxed: bool, limit: float) -> Equality:
    r"""Compares the answer in `text` with the reference.

    Args:
        reference: the reference answer.
        text: the completion, or its part that holds the answer.
        boxed: look into `\boxed{…}` only.
        limit: seconds of processor time for the answer, and again for a reference seen for the first time.

    Raises:
        RewardError: if the reference cannot be compared with anything, or the library is missing.
    """
    request = {"reference": reference, "text": text, "boxed": boxed, "limit": limit}
    with _comparisons.lock:
        return _comparisons.compare(request)
