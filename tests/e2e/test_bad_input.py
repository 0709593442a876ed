"""Bad input, through the real `dvc repro`: one clear error, a non-zero exit, and nothing lost."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.projects import edit_params, output_hashes, repro, run, stages_run

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeed": 1}, "seeed: unknown key; did you mean 'seed'?"),
        ({"recipes__grpo__compute_advantages__estimator__name": "gruop"}, "did you mean 'group'?"),
        ({"iterations__i0002__previous": "i0009"}, "there is no iteration 'i0009'"),
        ({"data__train": [{"name": "file", "files": "prompts.jsonl"}]}, "prompts.jsonl"),
    ],
)
def test_nothing_is_lost_when_settings_are_wrong(
    copy: Path, changes: dict[str, Any], message: str
) -> None:
    params, before = (copy / "params.yaml").read_text(), output_hashes(copy)
    edit_params(copy, **changes)
    result = repro(copy, check=False)
    assert result.returncode != 0
    assert message in result.stderr, result.stderr
    assert "Traceback" not in result.stderr
    (copy / "params.yaml").write_text(params)
    assert stages_run(repro(copy)) == ["check"]
    assert output_hashes(copy) == before


REWARDS = {
    "raises": ("raise ValueError('no such unit')", "no such unit"),
    "nan": ("return [float('nan')] * len(completions)", "nan"),
    "wrong_length": ("return [1.0]", "4"),
}


@pytest.mark.parametrize("kind", REWARDS)
def test_a_broken_reward_stops_scoring_and_keeps_the_rollouts(copy: Path, kind: str) -> None:
    body, message = REWARDS[kind]
    (copy / "my_rewards.py").write_text(f"def f(completions, **kwargs):\n    {body}\n")
    edit_params(
        copy,
        recipes__grpo__score_rollouts__rewards=[{"name": "function", "path": "my_rewards.py:f"}],
    )
    rollouts = (copy / "artifacts/rollouts/i0001.parquet").read_bytes()
    result = repro(copy, check=False)
    assert result.returncode != 0 and "Traceback" not in result.stderr
    assert "score_rollouts@i0001" in result.stderr and message in result.stderr.lower()
    assert (copy / "artifacts/rollouts/i0001.parquet").read_bytes() == rollouts


def test_a_table_damaged_on_disk_is_named(copy: Path) -> None:
    """DVC compares hashes before a stage runs, so the stage itself is run here."""
    path = copy / "artifacts/scores/i0001.parquet"
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[:-20])
    result = run(
        copy,
        "python",
        "-P",
        "-m",
        "rollbook.stages.compute_advantages",
        "--iteration",
        "i0001",
        check=False,
    )
    assert result.returncode == 1
    assert "artifacts/scores/i0001.parquet: truncated or damaged" in result.stderr
    assert "rollbook verify" in result.stderr
    verified = run(copy, "rollbook", "verify", check=False)
    assert verified.returncode == 1
    mend = "rm -rf {0} && dvc checkout {0}".format(path.relative_to(copy))
    assert mend in verified.stdout
    run(copy, "sh", "-c", mend)
    assert path.read_bytes() == content
    run(copy, "dvc", "checkout", "--force", "artifacts/scores/i0001.parquet")
    assert path.read_bytes() == content


def test_settings_edited_while_a_run_is_going_on(copy: Path) -> None:
    edit_params(copy, recipes__grpo__update_policy__learning_rate=1e-3)
    result = run(
        copy,
        "python",
        "-P",
        "-m",
        "rollbook.stages.update_policy",
        "--iteration",
        "i0001",
        check=False,
    )
    assert result.returncode == 1
    assert "settings or code changed since `check` planned this run" in result.stderr
