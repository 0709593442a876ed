"""`dvc repro`, killed with SIGKILL at random moments and run again: what the test and the benchmark share."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from rollbook.core.atomic import TEMPORARY_PREFIX
from rollbook.core.scratch import SCRATCH
from rollbook.dvc.guard import is_torn
from rollbook.dvc.lock import output_md5s, texts_of, without
from rollbook.dvc.running_steps import DVC_WRITES
from tests.e2e.projects import environment, output_hashes, repro, run, stages_run

STARTING_SECONDS = 2.0
"""About as long as DVC takes to load and `check` to run."""
WORKING_SECONDS = 5.0
"""A little longer than the longest stage on two idle cores: each can be hit anywhere, and some attempts get past it."""
STARTING_SHARE = 1 / 3
"""Of the kills: so many while DVC starts or `check` runs, the others from then on."""
LOG = Path(".dvc/tmp/repro.log")
PROGRAM = re.compile(r"\bstages\.(\w+)")
GUARD_SECONDS = 5.0
NOT_IN_A_STAGE = "no stage: DVC loads, hashes, caches, or writes dvc.lock"


@dataclass(frozen=True)
class Kill:
    """What was hit.

    Attributes:
        victim: `stage` or `DVC`.
        during: name of the stage that was running, or NOT_IN_A_STAGE.
    """

    victim: str
    during: str


def kill_once(
    folder: Path, chance: random.Random, working_seconds: float = WORKING_SECONDS
) -> Kill | None:
    """Starts `dvc repro` and kills it, or the stage it runs, at a random moment; None: it was done before that.

    Args:
        folder: the project.
        chance: decides when, and which of the two.
        working_seconds: at most so long after `check`.

    Raises:
        AssertionError: if it failed by itself.
    """
    starting = chance.random() < STARTING_SHARE
    delay = chance.uniform(0, STARTING_SECONDS if starting else working_seconds)
    prefers_the_stage = chance.random() < 0.5
    (folder / LOG).parent.mkdir(exist_ok=True)
    with (
        (folder / LOG).open("wb") as log,
        subprocess.Popen(
            ["dvc", "repro"], cwd=folder, env=environment(), stdout=log, stderr=subprocess.STDOUT
        ) as process,
    ):
        if not starting:
            while process.poll() is None and _stage_of(process.pid)[1] in ("", "check"):
                time.sleep(0.005)
        try:
            process.wait(delay)
        except subprocess.TimeoutExpired:
            return _kill(process, prefers_the_stage)
        said = (folder / LOG).read_text(encoding="utf-8", errors="replace")
        assert process.returncode == 0, f"`dvc repro` failed by itself:\n{said[-4000:]}"
        return None


def mend(folder: Path) -> bool:
    """Does what README says where DVC could not read its own rwlock: `rollbook check`. Returns whether it had to.

    Only a kill before any `check` has run leaves it so; else the guard removes it, and gets a moment for that.
    """
    deadline = time.monotonic() + GUARD_SECONDS
    while is_torn(folder / DVC_WRITES):
        if time.monotonic() > deadline:
            said = run(folder, "rollbook", "check").stderr
            assert f"mended {DVC_WRITES}" in said, said
            return True
        time.sleep(0.05)
    return False


def faults(folder: Path, expected: dict[str, str]) -> list[str]:
    """Brings a run that was killed to its end; everything that is then not as in the run that was not.

    Args:
        folder: the project.
        expected: `output_hashes` of the undisturbed run.
    """
    found = []
    finishing = repro(folder, check=False)
    if finishing.returncode:
        return [f"`dvc repro` fails: {finishing.stderr[-2000:]}"]
    made = output_hashes(folder)
    found += [
        f"{path}: md5 {made.get(path)}, undisturbed {expected.get(path)}"
        for path in sorted({*made, *expected})
        if made.get(path) != expected.get(path)
    ]
    found += [f"{path}: left behind" for path in folder.glob(f"artifacts/**/{TEMPORARY_PREFIX}*")]
    verified = run(folder, "rollbook", "verify", check=False)
    if verified.returncode:
        found.append(f"`rollbook verify`: {verified.stdout[-2000:]}{verified.stderr[-2000:]}")
    if (again := stages_run(repro(folder))) != ["check"]:
        found.append(f"a second `dvc repro` ran {', '.join(again)}")
    return found


def forget(folder: Path, key: str) -> None:
    """Undoes an iteration as if it had never run: entries of dvc.lock, outputs, objects in the cache, run cache."""
    lock = folder / "dvc.lock"
    before, text = output_md5s(lock), lock.read_text()
    lock.write_text(
        without(text, {name for name in texts_of(text) if name.endswith(f"@{key}")} | {"report"})
    )
    after = output_md5s(lock)
    for path in before.keys() - after.keys():
        md5 = before[path]
        objects = [folder / ".dvc/cache/files/md5" / md5[:2] / md5[2:]]
        for each in [folder / path, *([] if md5 in after.values() else objects)]:
            if each.is_dir():
                shutil.rmtree(each)
            else:
                each.unlink(missing_ok=True)
    for name in (".dvc/cache/runs", SCRATCH):
        shutil.rmtree(folder / name, ignore_errors=True)


def _kill(process: subprocess.Popen[bytes], prefers_the_stage: bool) -> Kill:
    child, stage = _stage_of(process.pid)
    during = stage or NOT_IN_A_STAGE
    if prefers_the_stage and child:
        try:
            os.kill(child, signal.SIGKILL)
            process.wait(timeout=60)
            return Kill("stage", during)
        except ProcessLookupError:  # it ended at this very moment
            pass
    process.kill()
    process.wait()
    return Kill("DVC", during)


def _stage_of(pid: int) -> tuple[int, str]:
    """Process and name of the stage that DVC runs at this moment; 0 and nothing if it runs none."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for child in children:
            command = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            if match := PROGRAM.search(command):
                return int(child), match[1]
    except OSError:  # it ended meanwhile
        pass
    return 0, ""
