"""Rewards that break, hang, remember and leave things behind; named by path, as worker processes need it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from rollbook.components.rewards.base import Reward, RewardInput, RewardResult
from tests.unit.components.rewards.rows import row

HERE = "tests.unit.components.rewards.hostile"


def rows(*texts: str, per_group: int = 4) -> list[RewardInput]:
    """Rows in groups of some, with a column of their own."""
    return [
        row(
            text,
            "7",
            group_id=f"i0003/{place // per_group:04d}",
            rollout_id=f"i0003/{place // per_group:04d}/{place % per_group:02d}",
            columns={"place": place},
        )
        for place, text in enumerate(texts)
    ]


class Does(Reward):
    """Does what the completion says; else its length is the reward, and the process is logged."""

    def __call__(self, row: RewardInput) -> Any:
        match row.text:
            case "hang":
                return 9 ** (9**9) % 7  # in C, where no signal is heard
            case "sleep":
                time.sleep(60)
            case "nap":
                time.sleep(0.01)
            case "segfault":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "exit":
                os._exit(3)
            case "stop":
                sys.exit(3)
            case "interrupt":
                raise KeyboardInterrupt
            case "raise":
                raise OwnError("no", row)
            case "memory":
                raise MemoryError
            case "leave":
                child = subprocess.Popen(["sleep", "1000"])
                return RewardResult(1.0, {"child": child.pid})
            case "leave apart":
                child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
                return RewardResult(1.0, {"child": child.pid})
            case "leave orphan":
                command = ["sh", "-c", "setsid sleep 1000 >/dev/null & echo $!"]
                return RewardResult(1.0, {"child": int(subprocess.check_output(command))})
            case "stop parent":
                os.kill(os.getppid(), signal.SIGSTOP)
            case "wander":
                start = Path.cwd()
                os.chdir("/")
                return float(start != Path("/"))
            case "object":
                return RewardResult(1.0, {"thing": OwnError("no", row)})
        return RewardResult(float(len(row.text)), {"process": os.getpid()})


class OwnError(Exception):
    """Cannot be unpickled: it needs two arguments."""

    def __init__(self, what: str, row: RewardInput) -> None:
        super().__init__(what)


class BreaksOnce(Reward):
    """Ends its process at the first try of a row; a file remembers."""

    folder: str

    def __call__(self, row: RewardInput) -> float:
        file = Path(self.folder) / row.text
        if row.text.startswith("once") and not file.exists():
            file.touch()
            os._exit(1)
        return 1.0


class Siblings(Reward):
    """Scores groups together; hangs where one says so."""

    def score(self, group: Sequence[RewardInput]) -> list[Any]:
        if any(row.text == "hang" for row in group):
            time.sleep(60)
        return [float(len(group))] * len(group)


class Here(Reward):
    """Must run in the main process."""

    in_main_process: ClassVar[bool] = True

    def __call__(self, row: RewardInput) -> float:
        return float(os.getpid())


class SlowToLoad(Reward):
    """Loads for longer than a row may take."""

    broken: bool = False

    def prepare(self) -> None:
        if self.broken:
            raise ImportError("no module named sympy")
        time.sleep(0.7)

    def __call__(self, row: RewardInput) -> float:
        return 1.0


def shout(completions: Sequence[Any], place: Sequence[int], log_extra: Any, **_: Any) -> Any:
    """A function as TRL users write them, with a column of the data."""
    log_extra("place", place)
    return [float(number) for number in place]


async def later(completions: Sequence[Any], **_: Any) -> Any:
    """The same, to be awaited."""
    return [1.0] * len(completions)
