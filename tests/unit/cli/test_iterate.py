import difflib
from pathlib import Path

import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from rollbook.cli.iterate import iterate, next_iterations, with_iterations
from rollbook.core.errors import ConfigError
from rollbook.core.ids import PARAMS_FILE
from rollbook.core.yaml import read_yaml
from rollbook.settings.params import parse_params
from tests.unit.settings.test_params import SHIPPED_TEXT as TEXT
from tests.unit.settings.test_params import shipped


def _added(before: str, after: str) -> list[str]:
    diff = list(difflib.ndiff(before.splitlines(), after.splitlines()))
    assert not [line for line in diff if line.startswith("-")]
    return [line[2:] for line in diff if line.startswith("+")]


def test_only_the_new_lines_are_added() -> None:
    count = len(shipped()["iterations"])
    new = next_iterations(parse_params(shipped()), count + 2, None)
    previous, first, second = f"i{count:04d}", f"i{count + 1:04d}", f"i{count + 2:04d}"
    assert _added(TEXT, with_iterations(TEXT, new)) == [
        f"  {first}: {{previous: {previous}, recipe: grpo, reference: i0000}}",
        f"  {second}: {{previous: {first}, recipe: grpo, reference: i0000}}",
    ]


NEW = {"i0002": {"previous": "i0001", "recipe": "a", "reference": "i0000"}}
LINE = "i0002: {previous: i0001, recipe: a, reference: i0000}"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "i:\niterations:\n  i0001: {previous: i0000} # one\n\n# rest\nseed: 0\n",
            "{previous: i0000} # one\n  +\n\n# rest\n",
        ),
        (
            "iterations:\n    i0001:\n        previous: i0000 # one\n# rest\n",
            "previous: i0000 # one\n    +\n# rest\n",
        ),
        ("iterations:\n  i0001: {previous: i0000,\n    recipe: a}\n", "    recipe: a}\n  +\n"),
        ("iterations: {}  # none\nseed: 0\n", "iterations:\n  +  # none\nseed: 0\n"),
        ("iterations: {i0001: {previous: i0000}}\n", "{i0001: {previous: i0000}, +}\n"),
        ("seed: 0\n", "seed: 0\n\niterations:\n  +\n"),
    ],
)
def test_every_layout_is_kept(before: str, after: str) -> None:
    result = with_iterations(before, NEW)
    assert after.replace("+", LINE) in result
    assert "i0002" in YAML(typ="safe").load(result)["iterations"]


def test_a_branch_is_continued_under_its_own_letters() -> None:
    raw = shipped(
        iterations={
            "i0001": {"previous": "i0000", "recipe": "grpo", "reference": "i0000"},
            "b0002": {"previous": "i0001", "recipe": "grpo", "reference": "i0000"},
        }
    )
    assert list(next_iterations(parse_params(raw), 4, None)) == ["b0003", "b0004"]


def test_unknown_recipe_and_enough_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(TEXT)
    result = CliRunner().invoke(iterate, ["99", "--recipe", "gpro"])
    assert isinstance(result.exception, ConfigError) and "did you mean 'grpo'" in str(
        result.exception
    )
    result = CliRunner().invoke(iterate, ["1"])
    assert result.exit_code == 0 and "nothing to add" in result.output
    assert Path("params.yaml").read_text() == TEXT
    result = CliRunner().invoke(iterate, ["30", "--recipe", "language_model"])
    assert result.exit_code == 0
    assert read_yaml(Path("params.yaml"))["iterations"]["i0030"]["recipe"] == "language_model"


def test_a_rhythm_of_evaluations() -> None:
    count = len(parse_params(shipped()).iterations)
    wanted = 5 * (count // 5 + 2)
    new = next_iterations(parse_params(shipped()), wanted, None, evaluate_every=5)
    evaluated = [key for key, item in new.items() if item.get("evaluate", True)]
    assert evaluated == [f"i{number:04d}" for number in (wanted - 5, wanted)]
    text = with_iterations(TEXT, new)
    assert "reference: i0000, evaluate: false}" in text
    read = parse_params(YAML(typ="safe").load(text)).iterations
    assert {key for key in new if read[key].evaluate} == set(evaluated)


def test_the_option_sets_the_rhythm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(TEXT)
    count = len(read_yaml(PARAMS_FILE)["iterations"])
    result = CliRunner().invoke(iterate, [str(count + 4), "--evaluate-every", "2"])
    assert result.exit_code == 0
    items = list(read_yaml(PARAMS_FILE)["iterations"].items())[count:]
    assert [item.get("evaluate", True) for _, item in items] == [
        int(key[1:]) % 2 == 0 for key, _ in items
    ]
