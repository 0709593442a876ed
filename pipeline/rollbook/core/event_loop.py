"""One event loop per process for asynchronous functions of the user's (rewards), in its own thread, as TRL keeps one.

A loop per call would break functions that keep a client or a semaphore between calls: these belong to the loop they
were first used in. In its own thread it also serves callers that have a loop running, such as notebooks.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Awaitable
from functools import cache
from typing import Any


def awaited(awaitable: Awaitable[Any]) -> Any:
    """Runs a coroutine in the event loop of this process: its result, or its exception raised here."""
    future = asyncio.run_coroutine_threadsafe(_settled(awaitable), _loop_of(os.getpid()))
    try:
        value, error = future.result()
    except BaseException:
        future.cancel()
        raise
    if error is not None:
        raise error
    return value


async def _settled(awaitable: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    try:
        return await awaitable, None
    except (
        Exception,
        SystemExit,
        KeyboardInterrupt,
    ) as error:  # the last two would end the loop, and the caller wait for ever
        return None, error


@cache
def _loop_of(process: int) -> asyncio.AbstractEventLoop:  # noqa: ARG001
    """The loop of this process: a fork takes the object along, but not its thread."""
    loop = asyncio.new_event_loop()

    def serve() -> None:
        while not loop.is_closed():
            with contextlib.suppress(
                SystemExit, KeyboardInterrupt
            ):  # of a task that a function left behind
                loop.run_forever()

    threading.Thread(target=serve, name="async rewards", daemon=True).start()
    return loop
