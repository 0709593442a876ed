import asyncio
import threading

import pytest

from rollbook.core.event_loop import awaited


def test_calls_share_a_loop() -> None:
    async def loop() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    assert awaited(loop()) is awaited(loop())


def test_a_lock_kept_between_calls_works() -> None:
    # A lock belongs to the loop in which somebody had to wait for it.
    lock = asyncio.Lock()

    async def busy() -> int:
        async with lock:
            await asyncio.sleep(0)
        return 1

    async def both() -> list[int]:
        return list(await asyncio.gather(busy(), busy()))

    assert awaited(both()) == awaited(both()) == [1, 1]


def test_works_inside_a_running_loop() -> None:
    async def seven() -> int:
        return 7

    async def notebook() -> int:
        return int(awaited(seven()))

    assert asyncio.run(notebook()) == 7


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), KeyboardInterrupt()])
def test_what_is_raised_comes_out_and_the_loop_lives_on(error: BaseException) -> None:
    async def fails() -> None:
        raise error

    async def leaves_a_task_that_exits() -> int:
        asyncio.get_running_loop().call_soon(_exit)
        await asyncio.sleep(0.01)
        return 1

    with pytest.raises(type(error)):
        awaited(fails())
    assert awaited(leaves_a_task_that_exits()) == 1
    assert sum(thread.name == "async rewards" for thread in threading.enumerate()) == 1


def _exit() -> None:
    raise SystemExit
