"""`rollbook start`: shipped starting points are valid, and nothing of the user's is lost."""

import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rollbook.cli.start import start
from rollbook.core.errors import ConfigError, RollbookError
from rollbook.core.yaml import parse_yaml
from rollbook.settings.examples import examples, read_example
from rollbook.settings.params import parse_params, read_params
from tests.policy_folders import byte_level, saved
from tests.unit.settings.test_params import ROOT, SHIPPED_TEXT, shipped


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(start, list(arguments))


def _git(*arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose params.yaml is committed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text(json.dumps(shipped()))
    _git("init", "-q")
    _git("add", "-A")
    _git("commit", "-qm", "first")
    return tmp_path


@pytest.mark.parametrize("name", examples())
def test_every_example_is_valid(project: Path, name: str) -> None:
    example = read_example(name)
    saved(Path("models/base"), byte_level(False))  # what the example `own` asks its user for
    Path("models/base/model.safetensors").touch()
    params = parse_params(parse_yaml(example.text, name))
    assert example.title and example.text.startswith(f"# {example.title}\n")
    assert params.iterations and list(params.data.evaluation)


def test_a_fresh_checkout_trains_the_example_tiny() -> None:
    changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", "params.yaml"], cwd=ROOT)
    if changed.returncode == 1 or (ROOT / "dvc.lock").exists():
        pytest.skip("params.yaml may say here what its owner made of it")
    assert (ROOT / "params.yaml").read_text() == SHIPPED_TEXT


def test_smollm2_is_the_run_that_its_report_shows() -> None:
    params = parse_params(parse_yaml(read_example("smollm2").text, "smollm2"))
    recipe = params.recipe_of("i0001")
    assert len(params.iterations) == 20
    evaluated = [key for key, item in params.iterations.items() if item.evaluate]
    assert evaluated == ["i0005", "i0010", "i0015", "i0020"]
    assert recipe.prepare_prompts.prompts_per_iteration == 8
    assert recipe.generate_rollouts.group_size == 8
    assert recipe.generate_rollouts.max_completion_tokens == 24
    assert recipe.update_policy.learning_rate == 1e-5
    assert recipe.generate_rollouts.temperature == 0.7
    held_out = list(params.data.evaluation["heldout"].records("evaluation", 0))
    train = list(params.data.train[0].records("train", 0))
    assert len(held_out) == 96
    left, right = held_out[0]["operands"]
    question = f"What is {left} + {right}? Answer with just the number."
    assert held_out[0]["messages"][0]["content"] == question
    assert all(1 <= each <= 49 for row in train for each in row["operands"])


def test_without_a_name_it_lists() -> None:
    result = _run()
    assert result.exit_code == 0
    assert "smollm2  SmolLM2-135M-Instruct" in result.output


def test_it_replaces_what_is_committed_and_says_the_way_back(repository: Path) -> None:
    before = Path("params.yaml").read_text()
    result = _run("smollm2")
    assert result.exit_code == 0, result.exception
    assert read_params().policy.base.name == "smollm2"
    assert "next: dvc repro" in result.output
    back = next(line for line in result.output.splitlines() if line.startswith("back: "))
    subprocess.run(back.removeprefix("back: ").split(), check=True, capture_output=True)
    assert Path("params.yaml").read_text() == before


def test_unsaved_changes_are_not_lost(repository: Path) -> None:
    changed = json.dumps(shipped(seed=7))
    Path("params.yaml").write_text(changed)
    for stage in (False, True):
        if stage:
            _git("add", "-A")
        result = _run("smollm2")
        assert isinstance(result.exception, RollbookError)
        assert "git does not know" in str(result.exception)
        assert Path("params.yaml").read_text() == changed
    assert _run("smollm2", "--force").exit_code == 0
    assert read_params().policy.base.name == "smollm2"


def test_a_file_outside_of_git_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert _run("smollm2").exit_code == 0  # nothing there yet
    Path("params.yaml").write_text("seed: 1\n")
    assert "git does not know" in str(_run("smollm2").exception)


def test_a_run_from_another_base_stays(repository: Path) -> None:
    Path("artifacts/policies/i0000").mkdir(parents=True)
    info = Path("artifacts/run_info/init_policy/i0000.json")
    info.parent.mkdir(parents=True)
    info.write_text(json.dumps({"settings": {"policy": {"base": {"name": "tiny"}}}}))
    assert "another base policy (tiny)" in str(_run("smollm2").exception)
    base = parse_params(parse_yaml(read_example("smollm2").text, "smollm2")).policy.base
    info.write_text(json.dumps({"settings": {"policy": {"base": base.settings()}}}))
    assert _run("smollm2").exit_code == 0


def test_an_unknown_name_is_told() -> None:
    error = _run("smolm2").exception
    assert isinstance(error, ConfigError) and "did you mean 'smollm2'" in str(error)
