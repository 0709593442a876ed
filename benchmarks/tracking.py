"""How long MLflow takes to be made anew from disk, and until its first page can be read."""

from __future__ import annotations

import contextlib
import math
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import expect

from benchmarks.tables import markdown
from tests.browser.chromium import chromium
from tests.browser.mlflow_pages import calm_page
from tests.e2e.projects import environment
from tests.mlflow_server import serving
from tests.processes import PYTHONPATH
from tests.unit.views.mlflow.project import Project

ITERATIONS = 200
TEXTS = [[str(2 * place + 3), "12", "5", "7"] for place in range(16)]
"""16 groups of 4 answers, the first of each is right."""
METRICS = {
    "prepare_prompts": 5,
    "generate_rollouts": 9,
    "score_rollouts": 7,
    "compute_advantages": 11,
    "update_policy": 29,
    "evaluate_policy": 18,
}
"""How many metrics each stage of the default run leaves."""
REBUILD_LIMIT, PAGE_LIMIT = 60.0, 15.0
"""Seconds that each may take."""


@dataclass(frozen=True)
class _Took:
    """Time of a command, s: on the clock, and of processors."""

    wall: float
    processor: float

    @property
    def cells(self) -> list[str]:
        return [f"{self.wall:.1f}", f"{self.processor:.1f}"]


class _Long(Project):
    """A project whose iterations have as many metrics as real ones."""

    def run(self, stage: str, key: str, metrics: Mapping[str, float | None] | None = None) -> None:
        number = int(key[-4:])
        names = (f"{stage}/metric_{place}" for place in range(METRICS.get(stage, 0)))
        filled: dict[str, float | None] = {
            name: math.sin(number + place) for place, name in enumerate(names)
        }
        if stage == "evaluate_policy":
            filled = {"eval/heldout/mean_at_4": _mean(number), **filled}
        super().run(stage, key, filled if metrics is None else metrics)


def _mean(number: int) -> float:
    """Evaluation after so many iterations: from 0.3 towards 1."""
    return 1 - 0.7 * 0.98**number


def report(iterations: int = ITERATIONS) -> str:
    """The table: a row per thing that is waited for."""
    with TemporaryDirectory() as name, contextlib.chdir(name):
        folder = Path(name)
        (folder / ".dvc").mkdir()
        keys = [f"i{number:04d}" for number in range(1, iterations + 1)]
        _Long(iterations, TEXTS).finish(*keys)
        rebuilt = _track(folder, "--rebuild")
        nothing = _track(folder)
        shown = _first_page(folder, keys[-1])
    lines = [
        ["`rollbook track --rebuild`", *rebuilt.cells, f"{REBUILD_LIMIT:g}"],
        ["`rollbook track` where nothing is new", *nothing.cells, ""],
        ["`rollbook ui`, until the runs can be read", *shown.cells, f"{PAGE_LIMIT:g}"],
    ]
    kept = "both" if rebuilt.wall <= REBUILD_LIMIT and shown.wall <= PAGE_LIMIT else "not both"
    head = ["with MLflow", "s", "processor, s", "may take, s"]
    return (
        f"## Tracking\n\n{iterations} iterations of {len(TEXTS) * len(TEXTS[0])} rollouts with as many metrics as "
        f"those of the default run, each a run with its settings, inputs, tables and eight traces. Whole commands, "
        f"their start included; the page in a browser without a window, whose own processor time is not counted.\n\n"
        f"{markdown(head, lines)}\n\n"
        f"Within their limits: {kept}."
    )


def _track(folder: Path, *options: str) -> _Took:
    """What `rollbook track` takes."""
    before, started = _processor_seconds(), time.perf_counter()
    subprocess.run(
        [sys.executable, "-P", "-m", "rollbook.cli.main", "track", *options],
        cwd=folder,
        env={**environment(), "PYTHONPATH": PYTHONPATH},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return _Took(time.perf_counter() - started, _processor_seconds() - before)


def _first_page(folder: Path, last: str) -> _Took:
    """What it takes from the start of `rollbook ui` until the run and its evaluation are on the page."""
    with chromium() as browser:
        page = calm_page(browser)
        before, started = _processor_seconds(), time.perf_counter()
        with serving(folder) as link:
            page.goto(link)
            row = page.get_by_role("row").filter(has_text=str(_mean(int(last[-4:])))[:8])
            expect(row.first).to_be_visible(timeout=60_000)
            wall = time.perf_counter() - started
        return _Took(wall, _processor_seconds() - before)  # the server has ended, the browser not


def _processor_seconds() -> float:
    """Of all processes started from here that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    print(report())
