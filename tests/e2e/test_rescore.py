"""The story of re-scoring: a new reward is asked about stored rollouts, now and as cached steps; nothing trains."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline.artifacts import read_json, read_table
from tests.e2e.projects import edit_params, repro, run, stages_run

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("e2e")]

REWARD = (
    "def short(completions, **kwargs):\n"
    "    return [1.0 / (1 + len(c[0]['content'])) for c in completions]\n"
)


def _rescored(folder: Path) -> list[str]:
    """Steps that `rollbook rescore --stage short` ran."""
    steps = stages_run(run(folder, "rollbook", "rescore", "--stage", "short"))
    return [step.removeprefix("rescores/dvc.yaml:rescore_rollouts@") for step in steps]


def _trained(folder: Path) -> dict[str, int]:
    """When each file of the training chain was written, and the lock file."""
    artifacts = folder / "artifacts"
    files = [path for path in artifacts.rglob("*") if path.is_file()]
    mine = [path for path in files if "rescore" not in str(path.relative_to(artifacts))]
    chain = [path for path in mine if path.name != "plan.json"]
    return {str(path): path.stat().st_mtime_ns for path in (*chain, folder / "dvc.lock")}


def test_a_new_reward_is_asked_and_nothing_is_trained(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (copy / "my_rewards.py").write_text(REWARD)
    before = _trained(copy)
    now = run(copy, "rollbook", "rescore", "my_rewards.py:short", "--out", "scratch/short").stdout
    assert "i0001: 96 rollouts in 24 groups" in now and "exactly on-policy" in now
    assert "i0002: 96 rollouts in 24 groups" in now and "the policy i0001, which" in now

    edit_params(
        copy,
        recipes__short={
            "extends": "grpo",
            "score_rollouts": {"rewards": [{"name": "function", "path": "my_rewards.py:short"}]},
        },
        rescores__short={"recipe": "short"},
    )
    assert _rescored(copy) == ["short-i0001", "short-i0002"]
    assert _rescored(copy) == []
    assert _trained(copy) == before

    monkeypatch.chdir(copy)
    path = Path("artifacts/rescores/short/i0002.parquet")
    stored, facts = read_table(path, "rescores/short")
    assert stored.equals(pq.read_table("scratch/short/i0002.parquet"))
    assert facts.inputs.keys() == {"prompts", "rollouts", "scores", "logprobs", "advantages"}
    assert read_json(path.with_suffix(".json"))["rollouts"] == 96
    joined = pipeline.load("rollouts", join=("rescores/short",))
    lengths = joined["text"].str.len_chars()
    assert (joined["reward_short"] - 1 / (1 + lengths)).abs().max() < 1e-12

    # A change of the training that was not run is no business of a re-score, however much it would cost.
    edit_params(copy, recipes__grpo__update_policy__learning_rate=1e-3, runtime__max_rerun_hours=0)
    assert _rescored(copy) == []
    assert _trained(copy) == before
    edit_params(copy, recipes__grpo__update_policy__learning_rate=3e-4)

    run(copy, "rollbook", "iterate", "3")
    run(copy, "rollbook", "train-from", "i0001", "--recipe", "short")
    run(copy, "dvc", "repro", "compute_advantages@i0003")
    assert _rescored(copy) == ["short-i0003"]
    assert "nothing that is finished runs again" in run(copy, "rollbook", "check").stdout

    (copy / "my_rewards.py").write_text(REWARD.replace("1 +", "2 +"))
    assert _rescored(copy) == ["short-i0001", "short-i0002", "short-i0003"]
    assert stages_run(repro(copy, "compute_advantages@i0003")) == ["check"]


def test_a_broken_reward_stops_its_step_and_says_where(copy: Path) -> None:
    (copy / "my_rewards.py").write_text("def short(completions, **kwargs):\n    return 1 / 0\n")
    rewards = [{"name": "function", "path": "my_rewards.py:short"}]
    edit_params(
        copy,
        recipes__short={"extends": "grpo", "score_rollouts": {"rewards": rewards}},
        rescores__short={"recipe": "short"},
    )
    before = _trained(copy)
    broken = run(copy, "rollbook", "rescore", "--stage", "short", check=False)
    assert broken.returncode == 1
    assert "short: ZeroDivisionError: division by zero" in broken.stderr
    assert "rollbook: rescores.short: `dvc repro --single-item` failed" in broken.stderr
    assert not (copy / "artifacts" / "rescores").exists()
    assert _trained(copy) == before
