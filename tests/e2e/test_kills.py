"""Killed at any moment, repeated: the same bytes. Also shows that a second clone gives the same bytes."""

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from pipeline.atomic import TEMPORARY_PREFIX
from tests.e2e.projects import environment, make_project, output_hashes, repro, stages_run

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("e2e")]
KILLS = int(os.environ.get("ROLLBOOK_TEST_KILLS", "10"))


def _children(pid: int) -> list[int]:
    """Processes whose parent is `pid`."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def _kill_during_repro(folder: Path, victim: str, delay_seconds: float) -> str:
    """Starts `dvc repro`, kills the stage or DVC itself with SIGKILL after a while; returns what was killed."""
    with subprocess.Popen(
        ["dvc", "repro"],
        cwd=folder,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        time.sleep(delay_seconds)
        if victim == "stage":
            while process.poll() is None and not (children := _children(process.pid)):
                time.sleep(0.01)
            if process.poll() is None:
                os.kill(children[0], signal.SIGKILL)
                process.wait(timeout=60)
                return "stage"
        process.kill()
        process.wait()
        return "dvc"


def test_a_killed_run_ends_with_the_same_bytes_as_an_undisturbed_one(
    trained: Path, tmp_path: Path
) -> None:
    folder = make_project(tmp_path / "killed")
    chance = random.Random(7)
    for number in range(KILLS):
        _kill_during_repro(folder, "stage" if number % 2 else "dvc", chance.uniform(1.5, 9.0))
    repro(folder)
    assert output_hashes(folder) == output_hashes(trained)
    assert not list(folder.glob(f"artifacts/**/{TEMPORARY_PREFIX}*"))
    assert stages_run(repro(folder)) == ["check"]


def test_a_deleted_lock_file_comes_back_from_the_run_cache(copy: Path) -> None:
    before = output_hashes(copy)
    (copy / "dvc.lock").unlink()
    repro(copy)
    assert output_hashes(copy) == before
