"""The program of a scoring process: builds the rewards it is told, then scores the chunks it is sent.

It imports neither torch nor the schemas of tables. What its rewards started ends with it (`keeper.py`).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rollbook.components.rewards.base import Reward, limit_of
from rollbook.components.rewards.outcomes import Scored, prepare, scored
from rollbook.core.errors import RewardError
from rollbook.core.registry import build
from rollbook.rl.scoring.inputs import unpacked
from rollbook.rl.scoring.marks import Mark

Known = Mapping[tuple[int, int], Exception]
"""Calls that an earlier process did not survive, by reward and first row: what to record instead of calling."""


class RemoteError(Exception):
    """A traceback from a scoring process, shown with --debug."""


def main(channel: int, memory: int) -> None:
    """Serves until the parent closes the channel.

    Args:
        channel: descriptor of the connection to the parent.
        memory: descriptor of the shared memory for the mark.
    """
    connection = Connection(channel)
    # Where memory runs out, this process is to go, not the scorer.
    with contextlib.suppress(OSError):
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
        with contextlib.suppress(OSError, ValueError):  # a reward has closed it
            sys.stdout.flush()
        os._exit(0)  # threads that rewards left running are not waited for
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
        with contextlib.chdir(os.curdir):  # some rewards leave the folder
            answer = scored(reward, rows, _before(reward, number, known, mark))
        answers.append(_portable(answer))
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
