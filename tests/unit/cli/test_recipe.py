import difflib
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rollbook.cli.main import cli
from rollbook.core.errors import ConfigError
from rollbook.core.yaml import read_yaml
from rollbook.settings.params import read_params
from rollbook.settings.presets import presets
from tests.unit.settings.test_params import SHIPPED_TEXT as TEXT


@pytest.fixture(autouse=True)
def params_file(project: Path) -> Path:
    file = project / "params.yaml"
    file.write_text(TEXT)
    return file


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["recipe", *arguments])


def _refused(*arguments: str) -> str:
    before = Path("params.yaml").read_text()
    result = _run(*arguments)
    assert isinstance(result.exception, ConfigError), result.output
    assert Path("params.yaml").read_text() == before
    return str(result.exception)


def test_the_whole_block_is_added_and_nothing_else_changes(params_file: Path) -> None:
    result = _run("add", "paper", "--preset", "dr_grpo")
    assert result.exit_code == 0, result.output
    assert "Dr. GRPO" in result.output and "recipe diff grpo paper" in result.output
    diff = list(difflib.ndiff(TEXT.splitlines(), params_file.read_text().splitlines()))
    assert not [line for line in diff if line.startswith(("-", "?"))]
    added = [line[2:] for line in diff if line.startswith("+")]
    assert "  # Preset dr_grpo: Dr. GRPO, arXiv 2503.20783." in added
    assert "        scale: none # §3.2: std is removed" in added
    assert "        - {name: numeric_answer, weight: 1.0} # as in grpo" in added
    recipe = read_params().recipes["paper"]
    assert recipe.generate_rollouts.max_completion_tokens == 3000
    assert [reward.name for reward in recipe.score_rollouts.rewards] == ["numeric_answer"]


def test_sizes_like_a_recipe_scale_what_is_counted_in_tokens(params_file: Path) -> None:
    assert _run("add", "d", "--preset", "dapo", "--like", "language_model").exit_code == 0
    recipe = read_params().recipes["d"]
    assert recipe.prepare_prompts.prompts_per_iteration == 64
    assert recipe.generate_rollouts.engine.settings()["batch_size"] == 64
    assert recipe.score_rollouts.rewards[0].settings()["mode"] == "lenient"
    overlong = recipe.score_rollouts.rewards[1].settings()
    assert (overlong["max_completion_tokens"], overlong["cache_tokens"]) == (512, 102)
    assert recipe.update_policy.weight_decay == 0.1
    text = params_file.read_text()
    assert "group_size: 8 # as in language_model; the preset: 16" in text
    assert "cache_tokens: 102 # 4096 of 20480 tokens, at the limit of language_model" in text


def test_task_rewards_and_prompt_format_come_along(params_file: Path) -> None:
    changed = TEXT.replace(
        "    prepare_prompts: {prompts_per_iteration: 256}\n",
        "    prepare_prompts:\n      system_prompt: 'Answer: \"yes\"\n\n        or no'\n      assistant_prefix: '= '\n",
    ).replace(
        "        - {name: numeric_answer, weight: 1.0}\n",
        "        - numeric_answer\n"
        "        - {name: soft_overlong, max_completion_tokens: 4, cache_tokens: 1}\n"
        "      max_error_share: 0.1\n",
    )
    params_file.write_text(changed)
    assert _run("add", "d", "--preset", "dapo").exit_code == 0
    recipe, first = read_params().recipes["d"], read_params().recipes["grpo"]
    assert recipe.prepare_prompts.system_prompt == first.prepare_prompts.system_prompt
    assert recipe.prepare_prompts.assistant_prefix == "= "
    assert recipe.score_rollouts.max_error_share == 0.1
    names = [reward.name for reward in recipe.score_rollouts.rewards]
    assert names == ["numeric_answer", "soft_overlong"], "the preset's own stands for the task's"
    assert recipe.score_rollouts.rewards[1].settings()["cache_tokens"] == 4096


def test_a_recipe_that_extends_another_is_resolved(params_file: Path) -> None:
    params_file.write_text(
        TEXT.replace(
            "recipes:\n", "recipes:\n  short: {extends: grpo, generate_rollouts: {group_size: 4}}\n"
        )
    )
    assert _run("add", "g", "--preset", "gspo", "--like", "short").exit_code == 0
    recipe = read_params().recipes["g"]
    assert recipe.generate_rollouts.group_size == 4
    assert recipe.prepare_prompts.prompts_per_iteration == 256


def test_flow_style_recipes(params_file: Path) -> None:
    raw = read_yaml(params_file)
    from rollbook.core.yaml import flow

    params_file.write_text("\n".join(f"{key}: {flow(value)}" for key, value in raw.items()) + "\n")
    assert _run("add", "g", "--preset", "gspo").exit_code == 0
    assert read_params().recipes["g"].update_policy.loss.name == "gspo"


def test_what_is_refused() -> None:
    assert "recipes.grpo: exists already" in _refused("add", "grpo", "--preset", "dapo")
    assert "did you mean 'dapo'?" in _refused("add", "x", "--preset", "dapp")
    assert "--preset: is required" in _refused("add", "x")
    assert "did you mean 'grpo'?" in _refused("add", "x", "--preset", "dapo", "--like", "gpro")
    assert "letters, digits" in _refused("add", "a b", "--preset", "dapo")


def test_a_file_that_would_not_validate_is_not_written(params_file: Path) -> None:
    params_file.write_text(
        TEXT.replace("      temperature: 1.0\n", "      temperature: 1.0\n      group_siz: 2\n", 1)
    )
    assert "group_siz" in _refused("add", "x", "--preset", "dapo")


def test_the_menu_has_a_line_for_each() -> None:
    lines = _run("add", "--list").output.splitlines()
    assert [line.split()[0] for line in lines] == presets()


def test_diff_says_it_in_words_and_numbers() -> None:
    result = _run("diff", "grpo", "gspo")
    assert result.exit_code == 0, result.output
    for text in (
        "update_policy.loss.ratio",
        "sequence_mean",
        "what the importance ratio is taken over",
        "+1.41",
        "0.00909",
        "grpo, A = +1",
        "-3.000",
    ):
        assert text in result.output, text
    assert _run("diff", "grpo", "grpo").output == "grpo and grpo are the same\n"


def test_diff_outside_of_a_project(params_file: Path) -> None:
    params_file.unlink()
    assert "one ratio per" in " ".join(_run("diff", "trl", "gspo").output.split())
    result = _run("diff", "trl", "gsop")
    assert "did you mean 'gspo'?" in str(result.exception)


def test_without_torch_words_and_advantages_remain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    result = _run("diff", "grpo", "rloo")
    assert result.exit_code == 0, result.output
    assert "+0.40" in result.output and "torch is not installed" in result.output
    assert "A = +1" not in result.output
