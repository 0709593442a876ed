"""Scoring processes: they score chunks in parallel, and are killed where a reward takes too long or breaks them.

Rewards go to a process as their settings and are built there; nothing of a user's is pickled. Each process notes in
shared memory which call it is in (`marks.py`), so that the parent knows which rows a killed process was at. Then the
rest of the chunk is scored by a fresh process. A call that breaks its process is tried once more, alone with its group:
memory may have run out because of another. What is started and killed here is the keeper of each process
(`keeper.py`), which takes all with it that rewards started, also when this process is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from multiprocessing import Pipe
from multiprocessing.connection import wait
from types import TracebackType
from typing import Any

import numpy as np

from rollbook.components.rewards.base import Reward, limit_of
from rollbook.components.rewards.outcomes import Scored
from rollbook.core.errors import RewardError
from rollbook.core.ragged import IntArray
from rollbook.rl.scoring.marks import SIZE, Call, Mark

PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "scorer, *descriptors = map(int, sys.argv[2:]); "
    "from rollbook.rl.scoring.keeper import keep; keep(scorer, descriptors); "
    "from rollbook.rl.scoring.worker import main; main(*descriptors)"
)
LOOK_SECONDS = 0.05
"""How often time limits are looked at."""
LOOK_FOR_DEAD_SECONDS = 1.0
"""How often it is looked whether a process lives, where its end does not close the connection."""
TRIES = 2
"""Times a chunk is sent again because its process ended outside of any reward."""
GOODBYE_SECONDS = 2.0
"""What a process may take to run its exit handlers."""
KILL_SECONDS = 5.0
"""What a keeper may take to end all; longer than it tries."""

Pack = Callable[[IntArray], Any]
"""Rows of the table as something that can be sent."""


@dataclass(frozen=True)
class Chunk:
    """Whole groups that a process scores.

    Attributes:
        rows: of the table, in the order of groups and ids.
        groups: number of each row's group.
        failures: calls not to be made again, by reward and first row of the table, and what they come to.
        broke: calls that broke a process once, by reward and first row of the table.
        tries: processes that ended on it outside of any reward.
    """

    rows: IntArray
    groups: IntArray
    failures: Mapping[tuple[int, int], Exception] = field(default_factory=dict)
    broke: frozenset[tuple[int, int]] = frozenset()
    tries: int = 0

    def known(self) -> dict[tuple[int, int], Exception]:
        """Failures by place in the chunk."""
        place = {int(row): place for place, row in enumerate(self.rows)}
        return {(reward, place[row]): error for (reward, row), error in self.failures.items()}

    def around(self, row: int, **changes: Any) -> list[Chunk]:
        """The chunk in up to three: the group of `row` with these changes, and what is before and behind it.

        What broke or failed is a group on its own from then on, so the other parts know of nothing.
        """
        inside = np.flatnonzero(self.groups == self.groups[np.flatnonzero(self.rows == row)[0]])
        first, last = int(inside[0]), int(inside[-1]) + 1
        parts = [self._part(0, first), self._part(last, len(self.rows))]
        whole = replace(self._part(first, last), **changes)
        return [whole, *(part for part in parts if len(part.rows))]

    def _part(self, start: int, end: int) -> Chunk:
        return Chunk(self.rows[start:end], self.groups[start:end])


class Workers:
    """Scoring processes for some rewards. Use as a context manager: behind it, no process is left."""

    def __init__(self, rewards: Sequence[Reward], processes: int) -> None:
        self._specs = [reward.settings() for reward in rewards]
        self._limited = any(limit_of(reward) is not None for reward in rewards)
        self._processes = processes
        self._workers: list[_Worker] = []

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end(at_once=kind is not None)

    def scored(
        self, chunks: Iterable[Chunk], count: int, pack: Pack
    ) -> Iterator[tuple[IntArray, list[Scored]]]:
        """Rows and what each reward says about them, as chunks are done; they may come in other pieces.

        Args:
            chunks: whole groups.
            count: of chunks; no more processes are started.
            pack: makes rows something that can be sent.

        Raises:
            RewardError: if a reward cannot be built, or a process ends outside of a reward.
        """
        try:
            yield from self._scored(chunks, count, pack)
        except BaseException:
            self._end(at_once=True)  # or the next table would get the answers to this one
            raise

    def _scored(
        self, chunks: Iterable[Chunk], count: int, pack: Pack
    ) -> Iterator[tuple[IntArray, list[Scored]]]:
        fresh, waiting = iter(chunks), deque[tuple[Chunk, Any]]()
        while len(self._workers) < min(self._processes, count):
            self._workers.append(_Worker(self._specs))
        while True:
            for worker in self._workers:
                waiting.extend((each, pack(each.rows)) for each in islice(fresh, not waiting))
                if waiting and worker.is_ready and worker.chunk is None:
                    worker.begin(*waiting.popleft())
            # Packed while all are busy, so that none waits for it.
            waiting.extend((each, pack(each.rows)) for each in islice(fresh, not waiting))
            if not waiting and all(worker.chunk is None for worker in self._workers):
                return
            ready = wait([worker.connection for worker in self._workers], self._patience)
            for worker in list(self._workers):
                if worker.connection in ready or worker.has_ended:
                    chunk, answer = worker.chunk, worker.receive()
                    if answer is not None and chunk is not None:
                        yield chunk.rows, answer
                    left = [] if worker.process.returncode is None else self._pieces(worker)
                elif (call := worker.mark.read()).is_late:
                    left = self._pieces(worker, late=call)
                else:
                    continue
                waiting.extend((each, pack(each.rows)) for each in left)

    def _end(self, at_once: bool) -> None:
        for worker in self._workers:
            if worker.is_ready and worker.chunk is None and not at_once:
                worker.connection.close()
            else:
                worker.kill()
        for worker in self._workers:
            worker.leave()
        self._workers.clear()

    @property
    def _patience(self) -> float:
        return LOOK_SECONDS if self._limited else LOOK_FOR_DEAD_SECONDS

    def _pieces(self, worker: _Worker, late: Call | None = None) -> list[Chunk]:
        """What is left to do after `worker` died or was too late; a fresh one takes its place."""
        worker.kill()
        call, chunk, ended = worker.mark.read(), worker.chunk, worker.how_it_ended()
        worker.leave()
        if not worker.is_ready:
            raise RewardError(f"a scoring process ended while it started ({ended})")
        self._workers[self._workers.index(worker)] = _Worker(self._specs)
        if chunk is None:
            return []
        if call.reward < 0 or (late is not None and late.number != call.number):
            if chunk.tries == TRIES:
                raise RewardError(f"a scoring process ended outside of any reward ({ended})")
            return [replace(chunk, tries=chunk.tries + 1)]
        row = int(chunk.rows[call.place])
        key = (call.reward, row)
        if late is None and key not in chunk.broke:
            return chunk.around(row, failures=chunk.failures, broke=chunk.broke | {key})
        failure = (
            ChildProcessError(f"ended the process that it ran in ({ended})")
            if late is None
            else TimeoutError(f"took longer than {call.limit:g} s")
        )
        return chunk.around(row, failures={**chunk.failures, key: failure}, broke=chunk.broke)


class _Worker:
    """One scoring process, as its parent sees it.

    Attributes:
        chunk: what it is scoring.
        is_ready: whether it has built its rewards.
    """

    def __init__(self, specs: Sequence[Mapping[str, Any]]) -> None:
        self.connection, theirs = Pipe()
        with theirs, tempfile.TemporaryFile() as memory:
            memory.truncate(SIZE)
            self.mark = Mark(memory.fileno())
            descriptors = (theirs.fileno(), memory.fileno())
            numbers = map(str, (os.getpid(), *descriptors))
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", PROGRAM, json.dumps(sys.path), *numbers],
                stdin=subprocess.DEVNULL,
                pass_fds=descriptors,
                process_group=0,  # Ctrl-C is the parent's affair
            )
        self.chunk: Chunk | None = None
        self.is_ready = False
        with contextlib.suppress(OSError):  # it has died, which `receive` will see
            self.connection.send(specs)

    @property
    def has_ended(self) -> bool:
        """Whether it is gone, also where something that it started keeps the connection open."""
        return self.process.poll() is not None

    def begin(self, chunk: Chunk, content: Any) -> None:
        """Sends it a chunk."""
        self.chunk = chunk
        with contextlib.suppress(OSError):
            self.connection.send((content, chunk.known()))

    def receive(self) -> list[Scored] | None:
        """What it says about its chunk; None if it says that it is ready, or has died.

        Raises:
            RewardError: if it cannot score at all.
        """
        try:
            if not self.connection.poll():
                return None
            kind, content = self.connection.recv()
        except (EOFError, OSError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(GOODBYE_SECONDS)  # so that it is its own end that is told
            self.kill()
            return None
        if kind == "stop":
            raise RewardError(*content)
        if kind == "interrupted":
            raise KeyboardInterrupt
        if kind == "ready":
            self.is_ready = True
            return None
        self.chunk = None
        answer: list[Scored] = content
        return answer

    def kill(self) -> None:
        """Ends it and what it started."""
        self.process.terminate()
        try:
            self.process.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()  # the keeper was stopped, say; the scoring process dies with it
            self.process.wait()

    def how_it_ended(self) -> str:
        """The signal or the exit code."""
        code = self.process.returncode
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"

    def leave(self) -> None:
        """Waits for its end, which closing its connection has asked for, and frees what is held of it."""
        self.connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(GOODBYE_SECONDS)
        self.kill()
        self.mark.close()
