from pathlib import Path

import pytest
from click.testing import CliRunner

from rollbook.cli.main import cli
from rollbook.cli.train_from import branch
from rollbook.core.errors import ConfigError
from rollbook.settings.params import parse_params, read_params
from tests.unit.settings.test_params import SHIPPED_TEXT, shipped

RECIPES = {"strict_2": {"extends": "grpo"}, "i": {"extends": "grpo"}, "2": {"extends": "grpo"}}


def test_a_branch_goes_on_beside_what_follows(project: Path) -> None:
    Path("params.yaml").write_text(SHIPPED_TEXT)
    asked = ["train-from", "i0003", "--recipe", "language_model", "--iterations", "2"]
    done = CliRunner().invoke(cli, asked)
    assert done.exit_code == 0, done.output
    added = set(Path("params.yaml").read_text().splitlines()) - set(SHIPPED_TEXT.splitlines())
    assert added == {
        "  languagemodel0004: {previous: i0003, recipe: language_model, reference: i0000}",
        "  languagemodel0005: {previous: languagemodel0004, recipe: language_model, reference: i0000}",
    }
    params = read_params()
    chain = ["i0001", "i0002", "i0003", "languagemodel0004", "languagemodel0005"]
    assert params.chain("languagemodel0005") == chain
    assert params.iterations["i0004"].previous == "i0003"


def test_letters_of_its_own_and_the_reference_of_where_it_starts() -> None:
    raw = shipped()
    raw["recipes"] |= RECIPES
    raw["iterations"]["i0004"]["reference"] = "i0002"
    params = parse_params(raw)
    [first] = branch(params, "i0004", "strict_2", 1).items()
    assert first == (
        "strict0005",
        {"previous": "i0004", "recipe": "strict_2", "reference": "i0002"},
    )
    assert list(branch(params, "i0000", "i", 2)) == ["ib0001", "ib0002"]
    assert list(branch(params, "i0001", "2", 1)) == ["branch0002"]
    raw["iterations"] |= {
        key: {"previous": "i0001", "recipe": "i", "reference": "i0000"}
        for key in ("ib0002", "ic0002")
    }
    again = branch(parse_params(raw), "i0001", "i", 1)
    assert list(again) == ["id0002"]


def test_wrong_names_are_one_report() -> None:
    with pytest.raises(ConfigError) as caught:
        branch(parse_params(shipped()), "i0033", "gropo", 1)
    assert "did you mean 'i0006'?" in str(caught.value)
    assert "did you mean 'grpo'?" in str(caught.value)


def test_the_count_ends_at_9999() -> None:
    raw = shipped()
    raw["iterations"]["z9999"] = {"previous": "i0001", "recipe": "grpo", "reference": "i0000"}
    with pytest.raises(ConfigError, match="9999 is the last"):
        branch(parse_params(raw), "z9999", "grpo", 1)
