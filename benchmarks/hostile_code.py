"""A thousand hostile programs through the `code` reward: how long they take, and what they leave on the machine."""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.tables import markdown
from rollbook.rl.scoring.scorer import score_groups
from tests.unit.components.rewards.rows import reward, row
from tests.unit.components.rewards.test_code import EXPLOITS, GOOD, TESTS

ROWS = 1000
GOOD_EVERY = 50
"""An honest program among the others, which must keep its full reward."""
SETTLING_SECONDS = 1.0


@dataclass(frozen=True)
class Left:
    """What is on the machine, as far as this user can see it."""

    processes: int
    files: int
    descriptors: int
    memory_mib: float

    @classmethod
    def now(cls) -> Left:
        """Counted now."""
        memory = dict(
            line.split(":")
            for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        )
        return cls(
            len(programs()),
            sum(1 for _ in Path(tempfile.gettempdir()).iterdir()),
            sum(1 for _ in Path("/proc/self/fd").iterdir()),
            int(memory["MemAvailable"].split()[0]) / 1024,
        )


def programs() -> list[int]:
    """Ids of running processes; threads of the kernel, which have no command line, left out."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # it ended meanwhile
                if (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
    return found


@contextlib.contextmanager
def _own_temporary_folder() -> Iterator[None]:
    """A folder that no other program of the machine writes to, here and in the scoring processes."""
    before = os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        try:
            yield
        finally:
            tempfile.tempdir = None
            os.environ.pop("TMPDIR")
            if before is not None:
                os.environ["TMPDIR"] = before


def report(rows: int = ROWS) -> str:
    """The section: verdicts, time, and the machine before and after."""
    exploits = itertools.cycle(EXPLOITS.values())
    texts = [GOOD if number % GOOD_EVERY == 0 else next(exploits) for number in range(rows)]
    asked = [
        row(
            f"```python\n{text}\n```",
            group_id=f"i0001/{number // 8:04d}",
            rollout_id=f"i0001/{number // 8:04d}/{number % 8:02d}",
            columns={"tests": TESTS},
        )
        for number, text in enumerate(texts)
    ]
    with _own_temporary_folder():
        before = Left.now()
        started = time.perf_counter()
        found = score_groups([reward("code")], asked, processes=2)["reward"].to_pylist()
        seconds = time.perf_counter() - started
        time.sleep(SETTLING_SECONDS)
        after = Left.now()
    honest = [value for value, text in zip(found, texts, strict=True) if text == GOOD]
    hostile = [value for value, text in zip(found, texts, strict=True) if text != GOOD]
    table = markdown(
        ["", "before", "after"],
        [
            ["processes", f"{before.processes}", f"{after.processes}"],
            ["files in the temporary folder", f"{before.files}", f"{after.files}"],
            ["open files of the scorer", f"{before.descriptors}", f"{after.descriptors}"],
            ["available memory, MiB", f"{before.memory_mib:,.0f}", f"{after.memory_mib:,.0f}"],
        ],
    )
    return (
        f"## Hostile code\n\n{len(hostile):,} rows of {len(EXPLOITS)} exploits and {len(honest)} honest ones through "
        f"`code` with 2 worker processes: {seconds:.0f} s. Exploits with a reward other than 0: "
        f"{sum(value != 0.0 for value in hostile)}; honest ones with another than 1: "
        f"{sum(value != 1.0 for value in honest)}.\n\n{table}"
    )
