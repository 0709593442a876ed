"""The program of a scoring process: builds the rewards it is told, then scores the chunks it is sent.

It imports neither torch nor the schemas of tables, dies with its parent, and takes what its rewards started with it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from pipeline.errors import RewardError
from pipeline.process import die_with_parent
from pipeline.registry import build
from pipeline.rewards.base import Reward, limit_of
from pipeline.rewards.inputs import unpacked
from pipeline.rewards.marks import Mark
from pipeline.rewards.outcomes import Scored, prepare, scored

Known = Mapping[tuple[int, int], Exception]
"""Calls that an earlier process did not survive, by reward and first row: what to record instead of calling."""


class RemoteError(Exception):
    """A traceback from a scoring process, shown with --debug."""


def main(channel: int, memory: int, parent: int) -> None:
    """Serves until the parent closes the channel.

    Args:
        channel: descriptor of the connection to the parent.
        memory: descriptor of the shared memory for the mark.
        parent: process id; if it is gone already, so is the reason to live.
    """
    die_with_parent()
    if os.getppid() != parent:
        return
    connection = Connection(channel)
    with contextlib.suppress(
        OSError
    ):  # where memory runs out, this process is to go, not the scorer
        Path("/proc/self/oom_score_adj").write_text("500")
    for descriptor in (channel, memory):
        os.set_inheritable(descriptor, False)
    mark = Mark(memory)
    try:
        rewards = _built(connection.recv())
        connection.send(("ready", None))
        while True:
            content, known = connection.recv()
            connection.send(_answer(rewards, content, known, mark))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        atexit._run_exitfuncs()
        sys.stdout.flush()
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)  # with itself, what rewards left running
    except RewardError as error:
        connection.send(("stop", (error.message, error.hint)))
    except KeyboardInterrupt:
        connection.send(("interrupted", None))


def _built(specs: Sequence[Mapping[str, Any]]) -> list[Reward]:
    try:
        rewards: Any = [build("rewards", spec) for spec in specs]
    except ValueError as error:
        raise RewardError(f"a reward cannot be built in a scoring process: {error}") from error
    prepare(rewards)
    return rewards


def _answer(
    rewards: Sequence[Reward], content: Any, known: Known, mark: Mark
) -> tuple[str, list[Scored]]:
    rows = unpacked(content)
    answers = []
    for number, reward in enumerate(rewards):
        answers.append(_portable(scored(reward, rows, _before(reward, number, known, mark))))
        mark.end()
    return "scored", answers


def _before(reward: Reward, number: int, known: Known, mark: Mark) -> Callable[[int, int], None]:
    limit = limit_of(reward) or 0.0

    def before(place: int, rows: int) -> None:
        if (failure := known.get((number, place))) is not None:
            raise failure
        mark.begin(number, place, rows, limit * rows)

    return before


def _portable(result: Scored) -> Scored:
    """Exceptions of a user's own cannot always be sent; their text can."""
    if result.cause is None:
        return result
    place, error = result.cause
    return replace(
        result, cause=(place, RemoteError("\n" + "".join(traceback.format_exception(error))))
    )
