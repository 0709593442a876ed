"""Killed at any moment, repeated: the same bytes. `python -m benchmarks kills` does it a thousand times."""

import random
from pathlib import Path

import pytest

from tests.e2e.kills import faults, forget, kill_once, mend
from tests.e2e.projects import output_hashes, repro

pytestmark = pytest.mark.e2e
KILLS = 20


def test_a_killed_run_ends_with_the_same_bytes_as_an_undisturbed_one(
    trained: Path, copy: Path
) -> None:
    expected, chance, victims = output_hashes(trained), random.Random(7), []
    forget(copy, "i0002")
    while len(victims) < KILLS:
        if (kill := kill_once(copy, chance)) is not None:
            victims.append(kill.victim)
            mend(copy)
        else:
            assert faults(copy, expected) == []
            forget(copy, "i0002")
    assert faults(copy, expected) == []
    assert set(victims) == {"stage", "DVC"}


def test_a_deleted_lock_file_comes_back_from_the_run_cache(copy: Path) -> None:
    before = output_hashes(copy)
    (copy / "dvc.lock").unlink()
    repro(copy)
    assert output_hashes(copy) == before
