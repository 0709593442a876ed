"""Everything wrong with params.yaml is said in one report: place, value, what is allowed, the nearest name."""

import copy
from pathlib import Path
from typing import Any

import pytest

from rollbook.core.errors import ConfigError
from rollbook.core.yaml import parse_yaml, read_yaml
from rollbook.settings.config import Params
from rollbook.settings.examples import read_example
from rollbook.settings.params import merge, parse_params, read_text, write_text

ROOT = Path(__file__).parents[3]
SHIPPED_TEXT = read_example("tiny").text
"""params.yaml as it is shipped; the one of a checkout that has trained says what its owner made of it."""
SHIPPED = parse_yaml(SHIPPED_TEXT, "tiny.yaml")


def shipped(**changes: Any) -> dict[str, Any]:
    """The shipped settings with values set at dotted places (`__` for `.`)."""
    raw = copy.deepcopy(SHIPPED)
    for place, value in changes.items():
        *parents, last = place.split("__")
        node = raw
        for part in parents:
            node = node[part]
        node[last] = value
    return raw


def problems(raw: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_params(raw)
    return [str(problem) for problem in caught.value.problems]


def test_the_shipped_file_is_valid() -> None:
    params = parse_params(shipped())
    assert isinstance(params, Params)
    assert params.chain("i0003") == ["i0001", "i0002", "i0003"]
    assert params.recipe_of("i0001").update_policy.loss.name == "dapo"


def test_unknown_key_names_the_nearest() -> None:
    raw = shipped(recipes__grpo__update_policy__learning_rat=1e-3)
    [problem] = problems(raw)
    assert problem.startswith(
        "recipes.grpo.update_policy.learning_rat: unknown key; did you mean 'learning_rate'?"
    )
    assert "got 0.001" in problem


def test_unknown_key_inside_a_component() -> None:
    raw = shipped(recipes__grpo__update_policy__loss={"name": "dapo", "clip_hi": 0.3})
    [problem] = problems(raw)
    assert problem.startswith(
        "recipes.grpo.update_policy.loss.clip_hi: unknown key; did you mean 'clip_high'?"
    )


def test_misspelt_component() -> None:
    [problem] = problems(shipped(recipes__grpo__update_policy__loss={"name": "dapoo"}))
    assert problem.startswith(
        "recipes.grpo.update_policy.loss: there is no 'dapoo' in losses; did you mean 'dapo'?"
    )


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("seed", "zero"),
        ("recipes__grpo__generate_rollouts__group_size", 2.5),
        ("recipes__grpo__generate_rollouts__temperature", 0),
        ("recipes__grpo__generate_rollouts__top_p", 1.5),
        ("recipes__grpo__score_rollouts__rewards", []),
        ("recipes__grpo__update_policy", "fast"),
        ("runtime__threads", 0),
        ("data__train", []),
        ("evaluate_policy__samples", 0),
    ],
)
def test_wrong_types_and_values(place: str, value: Any) -> None:
    found = problems(shipped(**{place: value}))
    assert found[0].startswith(place.replace("__", ".")) and repr(value) in found[0]


def test_all_problems_come_in_one_report() -> None:
    raw = shipped(
        seed="zero", iterations__i0002__recipe="grpoo", recipes__grpo__update_policy__epochs=0
    )
    raw["sed"] = 1
    found = problems(raw)
    assert [problem.partition(":")[0] for problem in found] == [
        "iterations.i0002.recipe",
        "recipes.grpo.update_policy.epochs",
        "sed",
        "seed",
    ]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"previous": "i0100"},
            "iterations.i0002.previous: there is no iteration 'i0100'; did you mean",
        ),
        (
            {"previous": "i0003"},
            "iterations.i0002.previous: iterations follow each other in a circle",
        ),
        (
            {"previous": "i0002"},
            "iterations.i0002.previous: iterations follow each other in a circle: i0002 → i0002",
        ),
        (
            {"recipe": "gpro"},
            "iterations.i0002.recipe: there is no recipe 'gpro'; did you mean 'grpo'?",
        ),
        (
            {"reference": "i0005"},
            "iterations.i0002.reference: 'i0005' is not an iteration before i0002",
        ),
        ({"evaluate": "sometimes"}, "iterations.i0002.evaluate: input should be a valid boolean"),
    ],
)
def test_iterations_refer_to_what_exists(changes: dict[str, Any], expected: str) -> None:
    raw = shipped()
    raw["iterations"]["i0002"] = {**raw["iterations"]["i0002"], **changes}
    assert any(problem.startswith(expected) for problem in problems(raw))


@pytest.mark.parametrize("field", ["previous", "recipe", "reference"])
def test_what_dvc_yaml_reads_of_an_iteration_is_required(field: str) -> None:
    raw = shipped()
    del raw["iterations"]["i0002"][field]
    assert f"iterations.i0002.{field}: is required" in problems(raw)


@pytest.mark.parametrize("field", ["previous", "recipe", "reference"])
def test_names_that_are_lists_are_problems_and_not_crashes(field: str) -> None:
    raw = shipped()
    raw["iterations"]["i0002"][field] = ["i0001"]
    assert any(problem.startswith(f"iterations.i0002.{field}") for problem in problems(raw))
    raw = shipped(rescores={"strict": {"recipe": ["grpo"]}})
    raw["recipes"]["a"] = {"extends": ["grpo"]}
    assert {p.partition(":")[0] for p in problems(raw)} >= {
        "recipes.a.extends",
        "rescores.strict.recipe",
    }


@pytest.mark.parametrize("name", ["a-b", "a.b", "a/b", "1", ""])
def test_a_re_score_is_named_as_a_folder_and_a_step_can_be(name: str) -> None:
    [problem] = problems(shipped(rescores={name: {"recipe": "grpo"}}))
    assert problem.startswith("rescores")


@pytest.mark.parametrize("key", [1, "0001", "i1", "i00001", "i_0001", "i0000"])
def test_iteration_keys(key: Any) -> None:
    raw = shipped()
    raw["iterations"][key] = {"previous": "i0001", "recipe": "grpo"}
    assert any(f"iterations.{key}" in problem for problem in problems(raw))


def test_branches_have_their_own_letters() -> None:
    raw = shipped()
    raw["iterations"]["strict0004"] = {"previous": "i0003", "recipe": "grpo", "reference": "i0002"}
    params = parse_params(raw)
    assert params.chain("strict0004") == ["i0001", "i0002", "i0003", "strict0004"]


def test_extends_merges_deeply_and_keeps_order_independent() -> None:
    raw = shipped()
    raw["recipes"] = {
        "gentler": {"extends": "grpo", "update_policy": {"learning_rate": 1e-4}},
        "gentlest": {"extends": "gentler", "update_policy": {"loss": {"clip_low": 0.1}}},
        **raw["recipes"],
    }
    recipes = parse_params(raw).recipes
    base, last = recipes["grpo"].update_policy, recipes["gentlest"].update_policy
    assert last.learning_rate == 1e-4 and last.optimizer_steps == base.optimizer_steps
    assert last.loss.settings() == {**base.loss.settings(), "clip_low": 0.1}


def test_another_component_does_not_inherit_options() -> None:
    base = {"loss": {"name": "dapo", "clip_high": 0.28}, "epochs": 2}
    assert merge(base, {"loss": {"name": "grpo"}}) == {"loss": {"name": "grpo"}, "epochs": 2}
    assert merge(base, {"loss": {"name": "dapo", "clip_low": 0.1}})["loss"]["clip_high"] == 0.28


def test_extends_unknown_and_in_a_circle() -> None:
    raw = shipped()
    raw["recipes"]["a"] = {"extends": "grpoo"}
    assert any(
        p.startswith("recipes.a.extends: there is no recipe 'grpoo'; did you mean 'grpo'?")
        for p in problems(raw)
    )
    raw["recipes"]["a"] = {"extends": "b"}
    raw["recipes"]["b"] = {"extends": "a"}
    assert any("extend each other in a circle: a → b → a" in problem for problem in problems(raw))


def test_an_inherited_problem_is_reported_once() -> None:
    raw = shipped(recipes__grpo__update_policy__epochs=0)
    raw["recipes"]["child"] = {"extends": "grpo", "update_policy": {"learning_rate": 1e-4}}
    assert len(problems(raw)) == 1


def test_biased_ratio_is_refused_with_the_reason() -> None:
    raw = shipped(recipes__grpo__generate_rollouts__top_p=0.9)
    assert any("a ratio against them is biased" in problem for problem in problems(raw))
    raw["recipes"]["grpo"]["update_policy"]["old_logprobs"] = "measured"
    parse_params(raw)


def test_group_of_one_is_refused() -> None:
    [problem] = problems(shipped(recipes__grpo__generate_rollouts__group_size=1))
    assert "group_size must be at least 2" in problem


def test_one_answer_can_be_the_best_only_above_a_bound() -> None:
    raw = shipped(
        recipes__grpo__generate_rollouts__group_size=1,
        recipes__grpo__compute_advantages__estimator={"name": "best"},
    )
    [problem] = problems(raw)
    assert "group_size must be at least 2: estimator best compares" in problem
    raw["recipes"]["grpo"]["compute_advantages"]["estimator"]["min_reward"] = 1.0
    parse_params(raw)


def test_two_rewards_of_one_name_need_labels() -> None:
    raw = shipped(
        recipes__grpo__score_rollouts__rewards=[{"name": "exact_match"}, {"name": "exact_match"}]
    )
    assert any("give one of them a `label`" in problem for problem in problems(raw))
    raw["recipes"]["grpo"]["score_rollouts"]["rewards"][1]["label"] = "again"
    parse_params(raw)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [1", "expected"),
        ("- 1", "must be a mapping of settings, is list"),
        ("", "must be a mapping of settings, is NoneType"),
        ("a: 1\na: 2", "duplicate"),
    ],
)
def test_files_that_are_no_settings(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "params.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=expected):
        read_yaml(file)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="run from the project's folder"):
        read_yaml(tmp_path / "params.yaml")


def test_numbers_are_read_as_dvc_reads_them(tmp_path: Path) -> None:
    """YAML 1.2: `1e-06` is a number. PyYAML reads it as text."""
    file = tmp_path / "params.yaml"
    file.write_text("rate: 1e-06\nkey: 0o17\nyes: no\n")
    assert read_yaml(file) == {"rate": 1e-06, "key": 15, "yes": "no"}


def test_rewriting_keeps_line_ends_mode_and_links(tmp_path: Path) -> None:
    target, link = tmp_path / "real.yaml", tmp_path / "params.yaml"
    target.write_bytes(b"a: 1\r\nb: 2\r\n")
    target.chmod(0o664)
    link.symlink_to(target)
    write_text(read_text(link) + "c: 3\n", link)
    assert target.read_bytes() == b"a: 1\r\nb: 2\r\nc: 3\r\n"
    assert link.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o664
