"""The chain that a look at a run is about: the one that was asked for, or the last that has begun."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from rollbook.core.errors import ConfigError
from rollbook.project.report import Report, ReportedPolicy, write_curves
from rollbook.project.run.curves import CURVES_FILE
from rollbook.project.run.run import Run
from rollbook.settings.params import parse_params
from rollbook.tables.artifacts import path_of, write_json
from tests.in_process import chain_of, run_of
from tests.unit.settings.test_params import shipped

KEYS = ("i0001", "i0002", "i0003")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(keys: Sequence[str] = KEYS) -> Run:
    return run_of(parse_params({**shipped(), "iterations": chain_of("grpo", keys)}))


def tip(key: str = "") -> str:
    return run().chain(key, "a command").tip


def test_the_last_that_has_anything_on_disk() -> None:
    assert tip() == "i0003"  # none has: all of what is planned
    write_json({}, path_of("metrics/prepare_prompts", "i0001"))
    assert tip() == "i0001"
    assert [item.key for item in run().chain("i0003").begun] == ["i0001"]
    path_of("rollouts", "i0002").parent.mkdir(parents=True)
    path_of("rollouts", "i0002").touch()
    assert tip() == "i0002"
    assert tip("i0001") == "i0001"


def test_before_anything_is_pulled_the_curves_of_git_tell() -> None:
    CURVES_FILE.parent.mkdir()
    write_curves(
        Report([ReportedPolicy("i0000", 0, "", {}), ReportedPolicy("i0002", 2, "grpo", {})]),
        CURVES_FILE,
    )
    assert tip() == "i0002"


def test_without_iterations_it_is_the_base() -> None:
    base = run(())
    assert base.chain().tip == base.chain("i0000").tip == "i0000"


def test_another_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="there is no iteration 'i0004'; did you mean"):
        tip("i0004")
