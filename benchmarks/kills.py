"""A thousand random kills: the stage program or DVC, over repeated short runs of the embedded policy.

A run starts with nothing but its settings. It is killed at random moments and started again until it gets through or
has been killed often enough, then brought to its end, and must be what a run is that nobody disturbed.
`python -m benchmarks.kills 100` prints the section for a hundred. A thousand take over an hour: finished runs are
kept below KEPT, and a measurement that was cut off goes on with the next one. Runs of earlier commits are told of
beside those of the present one, with what they found; delete KEPT to start anew.
"""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import itertools
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.tables import markdown
from rollbook.core.hashing import short
from rollbook.core.scratch import SCRATCH
from rollbook.project.environment import git_says
from rollbook.tables.artifacts import write_json
from tests.e2e.kills import NOT_IN_A_STAGE, Kill, faults, kill_once, mend
from tests.e2e.projects import ROOT, make_project, output_hashes, repro

KILLS = 1000
KILLS_PER_RUN = 25
WORKING_SHARE = 0.3
"""Of the time of an undisturbed run: a kill comes at most so long after `check`, and so they reach every stage."""
SEED = 0
SHOWN_FAULTS = 10
KEPT = ROOT / SCRATCH / "kills"


@dataclass(frozen=True)
class Run:
    """One run and what was done to it.

    Attributes:
        kills: in order.
        seconds: in all.
        faults: what was not as in the undisturbed run, in the end.
        commit: of the code that ran.
        mended: times that DVC could not have read its rwlock, and `rollbook check` mended it.
    """

    kills: Sequence[Kill]
    seconds: float
    faults: Sequence[str]
    commit: str
    mended: int = 0


def report(kills: int = KILLS, processes: int | None = None) -> str:
    """The section: what was hit how often, times, faults.

    Args:
        kills: how many at least.
        processes: runs at once; default: one per processor.
    """
    with tempfile.TemporaryDirectory() as folder:
        template, undisturbed = (Path(folder) / name for name in ("template", "undisturbed"))
        make_project(template, iterations=1)
        shutil.copytree(template, undisturbed, symlinks=True)
        started = time.perf_counter()
        repro(undisturbed)
        seconds = time.perf_counter() - started
        task = functools.partial(
            _run, template, output_hashes(undisturbed), WORKING_SHARE * seconds
        )
        runs = _runs(task, kills, processes or os.cpu_count() or 1)
    return section(runs, seconds)


def _runs(task: Callable[[int], Run], kills: int, processes: int) -> list[Run]:
    """Runs of numbers 0, 1, … until those of this commit together, kept ones too, were killed often enough."""
    found, commit = _kept(), _commit()
    numbers = itertools.count(max(found, default=-1) + 1)

    def done() -> int:
        return sum(len(each.kills) for each in found.values() if each.commit == commit)

    with concurrent.futures.ThreadPoolExecutor(processes) as pool:
        going: dict[concurrent.futures.Future[Run], int] = {}
        while done() < kills or going:
            while len(going) < processes and done() < kills:
                number = next(numbers)
                going[pool.submit(task, number)] = number
            finished, _ = concurrent.futures.wait(
                going, return_when=concurrent.futures.FIRST_COMPLETED
            )
            for each in finished:
                number = going.pop(each)
                found[number] = each.result()
                write_json(asdict(found[number]), KEPT / f"{number:04d}.json")
                for fault in found[number].faults:
                    print(fault, file=sys.stderr)
            said = _told(found.values(), commit)
            print(said, file=sys.stderr, flush=True)
    return list(found.values())


def _kept() -> dict[int, Run]:
    """Runs of a measurement that was cut off, by number."""
    found = {}
    for file in sorted(KEPT.glob("*.json")):
        said = json.loads(file.read_text(encoding="utf-8"))
        kills = [Kill(**each) for each in said["kills"]]
        found[int(file.stem)] = Run(**{**said, "kills": kills})
    return found


def _run(template: Path, expected: dict[str, str], working_seconds: float, number: int) -> Run:
    chance, folder = random.Random(f"{SEED}/{number}"), template.parent / f"run-{number}"
    started, mended, kills, found = time.perf_counter(), 0, list[Kill](), list[str]()
    shutil.copytree(template, folder, symlinks=True)
    try:
        while len(kills) < KILLS_PER_RUN:
            kill = kill_once(folder, chance, working_seconds)
            if kill is None:
                break
            kills.append(kill)
            mended += mend(folder)
        found += faults(folder, expected)
    except AssertionError as error:
        found.append(str(error))
    if not found:
        shutil.rmtree(folder)
    said = [f"run {number}: {each}" for each in found]
    return Run(kills, time.perf_counter() - started, said, _commit(), mended)


def _commit() -> str:
    return short(git_says("rev-parse", "HEAD") or "")


def _told(runs: Iterable[Run], commit: str) -> str:
    """How often the runs of a commit were killed, and what that found."""
    own = [run for run in runs if run.commit == commit]
    kills, faults = sum(len(run.kills) for run in own), sum(len(run.faults) for run in own)
    mended = sum(run.mended for run in own)
    return f"{kills:,} kills in {len(own)} runs of {commit}, {faults} faults, {mended} mended"


def section(runs: Sequence[Run], undisturbed_seconds: float) -> str:
    """What was hit how often, times, and the first faults."""
    kills = [kill for run in runs for kill in run.kills]
    counts = collections.Counter((kill.during, kill.victim) for kill in kills)
    places = sorted(
        {kill.during for kill in kills}, key=lambda name: (name == NOT_IN_A_STAGE, name)
    )
    table = markdown(
        ["running at that moment", "stage killed", "DVC killed"],
        [[each, *(str(counts[each, victim]) for victim in ("stage", "DVC"))] for each in places],
    )
    faulty = [f"{run.commit}, {fault}" for run in runs for fault in run.faults]
    seconds = [run.seconds for run in runs]
    lines = [f"- {' '.join(fault.split())}" for fault in faulty[:SHOWN_FAULTS]]
    listed = "\n".join(["", "", *lines] if lines else [])
    commits = "; ".join(_told(runs, each) for each in dict.fromkeys(run.commit for run in runs))
    return (
        "## Random kills\n\nKills with SIGKILL in runs of one small iteration from nothing, each then brought to its "
        f"end, by commit of the code: {commits}. Compared are the md5s of all outputs but run_info with those of a run "
        "that nobody disturbed, what is left behind, "
        f"`rollbook verify`, and what a second `dvc repro` runs. Undisturbed a run takes {undisturbed_seconds:.0f} s, "
        f"killed {len(kills) / len(runs):.0f} times {statistics.median(seconds):.0f} s (median), all checks included. "
        "Mended: a kill before the first `check` of a project tore DVC's rwlock, and `rollbook check` ran once before "
        "`dvc repro`."
        f"\n\n{table}{listed}"
    )


if __name__ == "__main__":
    print(report(*map(int, sys.argv[1:])))
