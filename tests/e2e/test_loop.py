"""The loop as a user runs it: what exists afterwards, and what runs again after which edit."""

import json
from pathlib import Path

import polars as pl
import pytest

import rollbook
from rollbook.tables.artifacts import TABLES, read_table
from tests.e2e.projects import commit, edit_params, git, output_hashes, repro, run, stages_run

pytestmark = pytest.mark.e2e


def _ids(stages: list[str], key: str) -> set[str]:
    return {stage.partition("@")[0] for stage in stages if stage.endswith(f"@{key}")}


ALL = {
    "prepare_prompts",
    "generate_rollouts",
    "measure_logprobs",
    "score_rollouts",
    "compute_advantages",
    "update_policy",
    "evaluate_policy",
    "track_iteration",
}


def test_every_table_is_there_and_valid(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained)
    for kind in TABLES:
        for path in sorted((Path("artifacts") / kind).glob("*.parquet")):
            read_table(path, kind)
    joined = rollbook.load("rollouts", join=("prompts", "scores", "advantages", "updates"))
    assert joined.height == 2 * 24 * 4
    assert (
        joined["reward"].null_count()
        == joined["advantage"].null_count()
        == joined["messages"].null_count()
        == 0
    )
    for _, group in joined.group_by("group_id"):
        assert abs(group["advantage"].sum()) < 1e-9
    assert pl.scan_parquet("artifacts/rollouts/*.parquet").collect().height == joined.height


def test_rollouts_name_the_policy_that_made_them(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trained)
    digests = {}
    for key in ("i0000", "i0001", "i0002"):
        digests[key] = json.loads(Path(f"artifacts/policies/{key}/rollbook.json").read_text())[
            "content_hash"
        ]
    assert len(set(digests.values())) == 3
    for key, previous in (("i0001", "i0000"), ("i0002", "i0001")):
        table, _ = read_table(Path(f"artifacts/rollouts/{key}.parquet"), "rollouts")
        assert set(table["policy_digest"].to_pylist()) == {digests[previous]}


def test_nothing_but_check_runs_again(copy: Path) -> None:
    assert stages_run(repro(copy)) == ["check"]


def test_report_and_status_files(trained: Path) -> None:
    summary = json.loads((trained / "reports" / "summary.json").read_text())
    assert summary
    assert "i0002" in (trained / "reports" / "curves.csv").read_text()
    assert "i0002" in run(trained, "rollbook", "report").stdout
    assert git(trained, "status", "--porcelain", "--ignored=no", "artifacts") == ""


def test_appended_iterations_run_alone(copy: Path) -> None:
    before = output_hashes(copy)
    run(copy, "rollbook", "iterate", "3")
    stages = stages_run(repro(copy))
    assert _ids(stages, "i0003") == ALL
    assert not _ids(stages, "i0001") and not _ids(stages, "i0002")
    after = output_hashes(copy)
    meant = {"artifacts/plan.json", "reports/summary.json", "reports/curves.csv"}
    assert {path for path in before if after[path] != before[path]} == meant


def test_a_new_recipe_leaves_earlier_iterations_cached(copy: Path) -> None:
    edit_params(
        copy,
        recipes__gentler={"extends": "grpo", "update_policy": {"learning_rate": 1e-4}},
        iterations__i0002={"previous": "i0001", "recipe": "gentler", "reference": "i0000"},
    )
    stages = stages_run(repro(copy))
    assert not _ids(stages, "i0001")
    assert _ids(stages, "i0002") == {"update_policy", "evaluate_policy", "track_iteration"}


def test_edited_rewards_keep_the_rollouts(copy: Path) -> None:
    (copy / "my_rewards.py").write_text(
        "from my_words import is_short\n\n\ndef short(completions, **kwargs):\n"
        "    return [float(is_short(c[0]['content'])) for c in completions]\n"
    )
    (copy / "my_words.py").write_text("def is_short(text):\n    return len(text) <= 2\n")
    rewards = [
        {"name": "numeric_answer"},
        {"name": "function", "path": "my_rewards.py:short", "weight": 0.1},
    ]
    edit_params(copy, recipes__grpo__score_rollouts__rewards=rewards)
    first = "track_iteration@i0001"
    stages = stages_run(repro(copy, first))
    assert _ids(stages, "i0001") == ALL - {
        "prepare_prompts",
        "generate_rollouts",
        "measure_logprobs",
    }

    words = copy / "my_words.py"
    words.write_text("# counts characters\n" + words.read_text())
    assert stages_run(repro(copy, first)) == ["check"]
    words.write_text("def is_short(text):\n    return len(text) <= 1\n")
    result = run(copy, "rollbook", "check")
    assert "code my_words.py: changed" in result.stdout
    scored = "score_rollouts@i0001"
    assert stages_run(repro(copy, scored)) == ["check", scored]


def test_code_that_no_recipe_uses_runs_nothing_again(copy: Path) -> None:
    loss = copy / "pipeline" / "rollbook" / "components" / "losses" / "dr_grpo.py"
    loss.write_text(loss.read_text() + "\nUNUSED = 1\n")
    (copy / "pipeline" / "rollbook" / "components" / "rewards" / "brand_new.py").write_text(
        (copy / "pipeline/rollbook/components/rewards/exact_match.py").read_text()
    )
    assert stages_run(repro(copy)) == ["check"]


def test_check_stops_before_much_is_thrown_away(copy: Path) -> None:
    edit_params(copy, runtime__max_rerun_hours=0, recipes__grpo__update_policy__learning_rate=1e-3)
    before = (copy / "dvc.lock").read_text()
    result = repro(copy, check=False)
    assert result.returncode != 0
    assert "update_policy.learning_rate: 0.0003 → 0.001" in result.stderr
    assert "runtime.max_rerun_hours" in result.stderr
    assert stages_run(result) == ["check"]
    edit_params(copy, recipes__grpo__update_policy__learning_rate=3e-4)
    assert stages_run(repro(copy)) == ["check"]
    assert (copy / "dvc.lock").read_text() == before


def test_experiments_with_and_without_the_queue(copy: Path) -> None:
    commit(copy, "trained")
    rate = "recipes.grpo.update_policy.learning_rate=0.001"
    run(copy, "dvc", "exp", "run", "--name", "direct", "-S", rate)
    samples = "evaluate_policy.samples=3"
    run(copy, "dvc", "exp", "run", "--name", "queued", "--queue", "-S", samples)
    run(copy, "dvc", "queue", "start")
    run(copy, "dvc", "queue", "logs", "--follow", "queued", check=False)
    shown = json.loads(run(copy, "dvc", "exp", "show", "--json").stdout)
    text = json.dumps(shown)
    assert "direct" in text and "queued" in text and '"state": "Failed"' not in text


def test_with_and_without_a_fork_server_the_same_bytes(copy: Path) -> None:
    steps = ["generate_rollouts@i0002", "update_policy@i0002"]

    def forked() -> set[bool]:
        places = (step.replace("@", "/") for step in steps)
        files = (copy / f"artifacts/run_info/{place}.json" for place in places)
        return {json.loads(file.read_text())["forked"] for file in files}

    before = output_hashes(copy)
    assert forked() == {True}
    edit_params(copy, runtime__fork_server=False)
    repro(copy, "--force", "--single-item", *steps)
    assert forked() == {False}
    assert output_hashes(copy) == before
