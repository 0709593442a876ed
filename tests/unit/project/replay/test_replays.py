"""Replays in a finished run: what MLflow shows of them, and inputs that only DVC says were read."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollbook.dvc.cache import cached_path, members
from rollbook.dvc.lock import Entry, read_entries
from rollbook.project.replay.judging import Judge
from rollbook.project.replay.stored import StoredArtifacts
from rollbook.project.run.run import Run
from rollbook.tables.artifacts import path_of
from rollbook.views.mlflow.sync import bring_up_to_date
from tests.processes import PYTHONPATH
from tests.unit.project.replay.finished_steps import replay
from tests.unit.views.mlflow.conftest import Shown

STEP = "compute_advantages@i0002"
VERDICT = "replay.compute_advantages.verdict"
DIFFERING = "replay/compute_advantages/differing_outputs"


def _entry(address: str) -> Entry:
    [found] = [each for each in read_entries() if each.address == address]
    return found


def test_mlflow_shows_what_came_out(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    before = replay(STEP)
    assert before.exit_code == 0 and "MLflow" not in before.output
    bring_up_to_date(Run())
    result = replay(STEP)
    assert result.exit_code == 0, result.output
    assert "shown in MLflow: 1 of 1" in result.output
    [shown] = Shown().iterations["i0002"]
    assert shown.data.tags[VERDICT] == "identical"
    assert shown.data.tags["replay.compute_advantages.code"] == "the worktree"
    assert shown.data.metrics[DIFFERING] == 0

    rollouts = path_of("rollouts", "i0002")
    cached_path(_entry(STEP).inputs[rollouts.as_posix()]).unlink()
    rollouts.unlink()
    result = replay(STEP)
    assert result.exit_code == 2
    [shown] = Shown().iterations["i0002"]
    assert shown.data.tags[VERDICT] == "not replayed"
    assert shown.data.metrics[DIFFERING] == 0  # still that of the one before


def test_a_base_policy_that_was_not_read_is_no_altered_input(run: Path, tmp_path: Path) -> None:
    address = "evaluate_policy@i0001"
    entry, info = _entry(address), Run().needed_info("evaluate_policy", "i0001")
    base, policy = (path_of("policies", key).as_posix() for key in ("i0000", "i0001"))
    assert {base, policy} <= entry.inputs.keys()
    stored = StoredArtifacts(tmp_path / "fetched", True)
    stored.put(policy, entry.inputs[policy], tmp_path / policy)
    judge = Judge(stored, tmp_path, tmp_path / "recorded")
    assert list(judge.altered_inputs(entry, info)) == []
    for path in (base, policy):
        [listed] = [
            cached_path(md5)
            for name, md5 in members(entry.inputs[path]).items()
            if name == "chat_template.jinja"
        ]
        listed.unlink(missing_ok=True)  # else the workspace's would change with it
        listed.write_text("another template")
    [note] = judge.altered_inputs(entry, info)
    assert note.startswith(f"{policy}: DVC's cache holds something else than was read")
