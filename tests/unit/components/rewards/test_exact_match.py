from typing import Any

import pytest
from pydantic import ValidationError

from tests.unit.components.rewards.rows import reward, row


def score(text: str, reference: str | None, **options: Any) -> Any:
    return reward("exact_match", **options)(row(text, reference))


def test_compares_texts() -> None:
    assert score("Paris", "Paris") == 1.0
    assert score("paris", "Paris") == 0.0
    assert score("Paris.", "Paris") == 0.0
    assert score("Paris", None) is None
    assert score("", "") == 1.0


def test_space_around_both_sides_is_left_out_unless_told() -> None:
    assert score(" Paris\n", "Paris ") == 1.0
    assert score(" Paris", "Paris", strip=False) == 0.0


def test_normalisations_are_for_both_sides() -> None:
    assert score("STRASSE", "Straße", ignore_case=True) == 1.0
    assert score("New \n York", "New York") == 0.0
    assert score("New \n York", "New\tYork", collapse_whitespace=True) == 1.0


def test_extract_takes_the_last_place_from_the_completion_only() -> None:
    extract = r"<answer>(.*?)</answer>"
    assert (
        score("<answer>Rome</answer> no: <answer>Paris</answer>", "Paris", extract=extract) == 1.0
    )
    assert score("<answer>\nParis\n</answer>", "Paris", extract=extract) == 1.0
    assert score("Paris", "Paris", extract=extract) == 0.0
    assert score("<answer>Paris</answer>", "<answer>Paris</answer>", extract=extract) == 0.0


@pytest.mark.parametrize(
    ("extract", "reason"),
    [("(", "not a regular expression"), ("answer", "has 0"), ("(a)(b)", "has 2")],
)
def test_an_unusable_expression_is_refused_when_built(extract: str, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        reward("exact_match", extract=extract)
