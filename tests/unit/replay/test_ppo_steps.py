"""The steps of a recipe with a critic, replayed for real: its values, its returns, the update of both."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.artifacts import path_of, read_table
from tests.in_process import chain_of
from tests.unit.auditing.finished_run import make
from tests.unit.auditing.finished_run import settings as finished_settings
from tests.unit.replay.finished_steps import replay, verdict
from tests.unit.test_params import ROOT

KEYS = ["i0001", "i0002"]
REPLAYED = ("measure_logprobs", "compute_advantages", "update_policy")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two iterations of PPO, one answer to a prompt; look, do not touch."""
    raw = finished_settings()
    raw["recipes"]["ppo"] = {
        "extends": "grpo",
        "generate_rollouts": {"group_size": 1},
        "compute_advantages": {"estimator": {"name": "gae", "lam": 0.95}, "kl_coef": 0.05},
        "update_policy": {"critic": {"name": "head", "learning_rate": 0.01}},
    }
    raw["iterations"], raw["rescores"] = chain_of("ppo", KEYS), {}
    return make(tmp_path_factory.mktemp("ppo"), raw)


def _numbers(kind: str, key: str, column: str) -> list[float]:
    lists = read_table(path_of(kind, key), kind)[0][column].to_pylist()
    return [value for each in lists for value in each]


def test_all_that_a_critic_has_to_do_with_is_identical(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(finished)
    assert not any(_numbers("logprobs", "i0001", "values"))  # there was no critic yet
    assert all(_numbers("logprobs", "i0002", "values"))
    assert any(_numbers("advantages", "i0002", "token_returns"))
    for stage in REPLAYED:
        result = replay(f"{stage}@i0002")
        assert result.exit_code == 0, result.output
        found = verdict(f"{stage}@i0002")
        assert found["outcome"] == "identical"
    assert path_of("values", "i0002").as_posix() in [each["path"] for each in found["outputs"]]
