"""The steps of a recipe of preference pairs, verified and replayed for real."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollbook.project.run.run import Run
from rollbook.project.verify.verification import verify
from rollbook.tables.artifacts import path_of, read_table
from tests.finished_run import make
from tests.finished_run import settings as finished_settings
from tests.in_process import chain_of
from tests.processes import PYTHONPATH
from tests.unit.project.replay.finished_steps import replay, verdict


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One iteration of DPO on all pairs; look, do not touch."""
    raw = finished_settings()
    raw["recipes"]["dpo"] = {
        "extends": "grpo",
        "compute_advantages": {"estimator": {"name": "pairs", "pairing": "all"}},
        "update_policy": {"loss": {"name": "dpo"}},
    }
    raw["iterations"], raw["rescores"] = chain_of("dpo", ["i0001"]), {}
    return make(tmp_path_factory.mktemp("dpo"), raw)


def test_pairs_and_their_update_are_identical(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    monkeypatch.chdir(finished)
    assert read_table(path_of("pairs", "i0001"), "pairs")[0].num_rows
    assert verify(Run()).findings == []
    for stage in ("compute_advantages", "update_policy"):
        result = replay(f"{stage}@i0001")
        assert result.exit_code == 0, result.output
        assert verdict(f"{stage}@i0001")["outcome"] == "identical"
    outputs = [each["path"] for each in verdict("compute_advantages@i0001")["outputs"]]
    assert path_of("pairs", "i0001").as_posix() in outputs
