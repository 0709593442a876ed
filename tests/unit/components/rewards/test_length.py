from typing import Any

import pytest
from pydantic import ValidationError

from rollbook.core.errors import RewardError
from tests.unit.components.rewards.rows import reward, row


def score(tokens: int, columns: dict[str, Any] | None = None, **options: Any) -> Any:
    settings = {"target_tokens": 100, "coef": 0.01, **options}
    completion = row("", completion_token_ids=[7] * tokens, columns=columns or {})
    return reward("length", **settings)(completion)


@pytest.mark.parametrize(
    ("tokens", "exact", "at_most"), [(0, -1.0, 0), (90, -0.1, 0), (100, 0, 0), (130, -0.3, -0.3)]
)
def test_charges_the_distance(tokens: int, exact: float, at_most: float) -> None:
    assert score(tokens) == pytest.approx(exact)
    assert score(tokens, mode="max") == pytest.approx(at_most)


def test_number_of_the_paper() -> None:
    assert score(2048, target_tokens=1024, coef=0.0003) == pytest.approx(-0.3072)
    assert reward("length", target_tokens=1).settings()["coef"] == 0.0003


def test_a_prompt_may_have_a_target_of_its_own() -> None:
    assert score(50, {"budget": 40}, target_column="budget") == pytest.approx(-0.1)
    assert score(50, {"budget": None}, target_column="budget") == pytest.approx(-0.5)


@pytest.mark.parametrize("budget", ["40", 0, True, 4.5])
def test_a_target_that_is_none_is_an_error(budget: Any) -> None:
    with pytest.raises(RewardError, match="budget must be a number of tokens"):
        score(50, {"budget": budget}, target_column="budget")


def test_a_column_that_is_missing_is_an_error() -> None:
    with pytest.raises(RewardError, match="no column 'budget'"):
        score(50, target_column="budget")


def test_needs_a_target() -> None:
    with pytest.raises(ValidationError):
        reward("length")
