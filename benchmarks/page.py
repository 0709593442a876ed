"""How long `rollbook page` takes with 20,000 rollouts, how large the page is, and how quickly a browser answers."""

from __future__ import annotations

import contextlib
import random
import resource
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from playwright.sync_api import CDPSession, Page

from benchmarks.memory import Watch, peak_mib
from benchmarks.showing import EVALUATED, SAMPLES
from benchmarks.tables import markdown
from rollbook.views.page import vega
from rollbook.views.page.writing import PAGE
from tests.browser.chromium import chromium
from tests.e2e.projects import environment
from tests.processes import PYTHONPATH
from tests.unit.views.page import project

ITERATIONS, ROWS = 10, 2_000
OPENED = 3
"""Times that the file is opened anew."""
TEXTS, WORDS = 997, 30
"""Different completions, and the words of each."""
TIMES = 9
LAG = 100.0
"""Milliseconds of processor time that a reader does not notice."""
READY = "html[data-explorer=ready][data-charts=drawn]"
SET_FILTER = """([name, value]) => {
    document.querySelector(`#filters [name=${name}]`).value = value;
    document.getElementById('filters').requestSubmit();
}"""
OPEN = "(row) => document.querySelectorAll('#rows button')[row].click()"
TURN = "() => document.getElementById('next').click()"
PAINTED = """async ([given, wanted]) => {
    const started = performance.now();
    (ACT)(given);
    const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    do { await painted(); } while (wanted && !document.querySelector('#rollout h3')?.textContent.endsWith(wanted));
    return performance.now() - started;
}"""
"""Does ACT and waits until the page is painted anew, with the rollout that is wanted if one is. Gives milliseconds."""


@dataclass(frozen=True)
class Written:
    """What writing the page takes.

    Attributes:
        seconds: from the start of the command to its end.
        processor: s.
        mib: peak memory.
    """

    seconds: float
    processor: float
    mib: float


@dataclass(frozen=True)
class Act:
    """Something that a reader does, once.

    Attributes:
        wall: ms until the page is painted anew.
        processor: ms of processor time of the page's main thread; hardly depends on what else the machine does.
    """

    wall: float
    processor: float


def report(iterations: int = ITERATIONS, rows: int = ROWS, times: int = TIMES) -> str:
    """The table: a row per thing that is waited for."""
    keys = [f"i{number:04d}" for number in range(1, iterations + 1)]
    with TemporaryDirectory() as name, contextlib.chdir(name):
        project.make(keys, rows, _texts())
        vega.bundle()  # is kept in the project: made once
        written, size = _written(Path(name)), PAGE.stat().st_size
        seen = _seen(PAGE.resolve(), keys[-1], times)
    lines = [
        [
            what,
            f"{statistics.median(act.processor for act in acts):.0f}",
            f"{max(act.processor for act in acts):.0f}",
            f"{statistics.median(act.wall for act in acts):.0f}",
        ]
        for what, acts in seen.items()
    ]
    slowest = max(float(line[2]) for line in lines[1:])
    evaluated = iterations * EVALUATED * (SAMPLES + 1)
    head = ["in Chromium", "processor, ms", "slowest, ms", "wall, ms"]
    return (
        f"## Page\n\n`rollbook page` of {iterations * rows:,} rollouts of {WORDS} words in {iterations} iterations, "
        f"{evaluated:,} evaluation answers beside them: {written.seconds:.1f} s ({written.processor:.1f} s of "
        f"processor time), {written.mib:.0f} MiB of memory at most, one file of {size / 1e6:.1f} MB.\n\nIn a browser "
        f"without a window, from the reader's act until it is painted: processor time of the page's main thread, "
        f"median and slowest, and median wall time.\n\n{markdown(head, lines)}\n\n{LAG:g} ms are not noticed: "
        f"{'all acts' if slowest <= LAG else 'not all acts'} stay below."
    )


def _texts() -> list[str]:
    drawn = random.Random(0)
    words = ["".join(drawn.choices("abcdefghijklmnopqrstuvwxyz", k=5)) for _ in range(2_000)]
    return [" ".join(drawn.choices(words, k=WORDS)) for _ in range(TEXTS)]


def _written(folder: Path) -> Written:
    before, started = _processor_seconds(), perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "rollbook.cli.main", "page"],
        cwd=folder,
        env={**environment(), "PYTHONPATH": PYTHONPATH},
        stdout=subprocess.DEVNULL,
    )
    with Watch(process.pid, peak_mib) as watch:
        assert process.wait() == 0
    return Written(perf_counter() - started, _processor_seconds() - before, watch.own)


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _seen(file: Path, last: str, times: int) -> dict[str, list[Act]]:
    """What a reader does; opening the file comes first."""
    with chromium() as browser:
        opened = []
        for _ in range(OPENED):
            page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
            page.set_default_timeout(600_000)
            session, started = _watched(page), perf_counter()
            page.goto(file.as_uri())
            page.wait_for_selector(READY)
            opened.append(Act(1000 * (perf_counter() - started), _busy(session)))
        found = {"open the file, until rollouts and curves are there": opened}
        asked = {
            "filter by reward": [("reward-low", value) for value in ("0.5", "")],
            "search all texts": [("text", value) for value in ("quick", "ab", "")],
            "order by advantage": [("order", value) for value in ("advantage down", "")],
            "turn to evaluation answers and back": [("of", value) for value in (project.SET, "")],
        }
        for what, values in asked.items():
            given = [values[place % len(values)] for place in range(times)]
            found[what] = [_done(page, session, SET_FILTER, each) for each in given]
            _done(page, session, SET_FILTER, values[-1])  # which shows all
        found["turn a leaf"] = [_done(page, session, TURN) for _ in range(times)]
        _done(page, session, SET_FILTER, ("iteration", last))
        names = page.locator("#rows button").evaluate_all("all => all.map(each => each.title)")
        assert all(name.startswith(f"{last}/") for name in names) and len(names) > times
        acts = [_done(page, session, OPEN, row, names[row]) for row in range(times)]
        found["open the first answer of an iteration"] = acts[:1]
        found["open another one"] = acts[1:]
    return found


def _watched(page: Page) -> CDPSession:
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    return session


def _busy(session: CDPSession) -> float:
    """Processor time that the tasks of a page's main thread took so far, ms."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    return 1000 * next(each["value"] for each in metrics if each["name"] == "TaskDuration")


def _done(page: Page, session: CDPSession, act: str, given: object = None, wanted: str = "") -> Act:
    before = _busy(session)
    wall = page.evaluate(PAINTED.replace("ACT", act), [given, wanted])
    return Act(float(wall), _busy(session) - before)


if __name__ == "__main__":
    print(report())
