"""The story of re-scoring: a new reward is asked about stored rollouts, now and as cached steps; nothing trains."""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import rollbook
from rollbook.tables.artifacts import read_json, read_table
from tests.e2e.projects import (
    ROOT,
    edit_params,
    repro,
    run,
    stages_run,
    store_uri,
    table_of,
    without_torch,
)
from tests.unit.views.mlflow.conftest import Shown

pytestmark = pytest.mark.e2e

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


def _shown(folder: Path) -> dict[str, dict[int, float]]:
    """Curves of the new reward that MLflow shows of re-scores, by name; each is inside the run of the training."""
    shown = Shown(uri=store_uri(folder))
    [chain] = shown.chains
    runs = shown.of_kind("rescore")
    assert {run.data.tags["mlflow.parentRunId"] for run in runs} == {chain.info.run_id}
    return {run.info.run_name: shown.curve(run, "reward") for run in runs}


def test_a_new_reward_is_asked_and_nothing_is_trained(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (copy / "my_rewards.py").write_text(REWARD)
    before = _trained(copy)
    now = run(copy, "rollbook", "rescore", "my_rewards.py:short", "--out", "scratch/short").stdout
    assert "i0001: 96 rollouts in 24 groups" in now and "exactly on-policy" in now
    assert "i0002: 96 rollouts in 24 groups" in now and "the policy i0001, which" in now

    kept = json.loads((copy / "scratch/short/summary.json").read_text())
    means = {number: kept[f"i{number:04d}"]["reward"] for number in (1, 2)}
    assert _shown(copy) == {"re-scored: my_rewards.py:short": means}

    edit_params(
        copy,
        recipes__short={
            "extends": "grpo",
            "score_rollouts": {"rewards": [{"name": "function", "path": "my_rewards.py:short"}]},
        },
        rescores__short={"recipe": "short"},
    )
    waiting = "`rollbook rescore --stage short` would score"
    assert f"{waiting} i0001, i0002\n" in run(copy, "rollbook", "check").stdout
    assert _rescored(copy) == ["short-i0001", "short-i0002"]
    assert waiting not in run(copy, "rollbook", "check").stdout
    assert _rescored(copy) == []
    assert _trained(copy) == before
    names = ("my_rewards.py:short", "rescores.short")
    assert _shown(copy) == {f"re-scored: {name}": means for name in names}

    monkeypatch.chdir(copy)
    path = Path("artifacts/rescores/short/i0002.parquet")
    stored, facts = read_table(path, "rescores/short")
    assert stored.equals(pq.read_table("scratch/short/i0002.parquet"))
    assert facts.inputs.keys() == {"prompts", "rollouts", "scores", "logprobs", "advantages"}
    assert read_json(path.with_suffix(".json"))["rollouts"] == 96
    joined = rollbook.load("rollouts", join=("rescores/short",))
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
    assert f"{waiting} i0003\n" in run(copy, "rollbook", "check").stdout
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


def test_a_file_of_trl_rewards_is_asked_unchanged(copy: Path) -> None:
    """Five functions that look at one completion each, and one that looks at its siblings."""
    shutil.copy(ROOT / "tests/unit/components/rewards/trl_rewards.py", copy / "trl_rewards.py")
    names = ("correctness", "int", "strict_format", "soft_format", "tag_count", "novelty")
    rewards = [f"trl_rewards.py:{name}_reward_func" for name in names]
    said = run(copy, "rollbook", "rescore", *rewards, "--iterations", "i0001", "--out", "kept")
    assert "0 that no reward applies to, 0 errors" in said.stdout

    texts = table_of(copy, "rollouts", "i0001")["text"].to_pylist()
    prompts = table_of(copy, "prompts", "i0001").to_pylist()
    references = {row["group_id"]: row["reference_answer"] for row in prompts}
    rows = pq.read_table(copy / "kept/i0001.parquet").to_pylist()
    groups: dict[str, list[str]] = {}
    for text, row in zip(texts, rows, strict=True):
        groups.setdefault(row["group_id"], []).append(text)
    for text, row in zip(texts, rows, strict=True):
        siblings = groups[row["group_id"]]
        answer = text.strip()
        expected = {
            "correctness": 2.0 * (answer == references[row["group_id"]]),
            "int": 0.5 * answer.isdigit(),
            **dict.fromkeys(("strict_format", "soft_format", "tag_count"), 0.0),
            "novelty": float(siblings.count(text) == 1) if answer else None,
        }
        assert {name: row[f"reward_{name}_reward_func"] for name in names} == expected
        assert row["distinct_answers"] == len(set(siblings))
    assert len({row["reward"] for row in rows}) > 2


def test_without_torch_all_that_is_stored_can_be_asked(copy: Path, tmp_path: Path) -> None:
    """As installed without the extra `train`."""
    without = without_torch(tmp_path)
    asked = ("rescore", "numeric_answer", "math_answer", "--iterations", "i0001")
    done = run(copy, "rollbook", *asked, variables=without)
    assert "0 that no reward applies to, 0 errors" in done.stdout
    assert "warning" not in done.stderr
    probed = run(copy, "rollbook", "probe", "math_answer", variables=without).stdout
    assert "math_answer on 8 prompts of i0002" in " ".join(probed.split())
    assert "stored rollouts of i0002" in probed and "Errors: none" in probed

    edit_params(copy, rescores__again={"recipe": "grpo"})
    stage = run(copy, "rollbook", "rescore", "--stage", "again", variables=without)
    assert len(stages_run(stage)) == 2
    rescored = table_of(copy, "rescores/again", "i0002")
    assert rescored["reward"].equals(rescored["old_reward"])
    assert rescored["advantage"].equals(rescored["old_advantage"])
