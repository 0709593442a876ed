from typing import Any

import pytest
from pydantic import ValidationError

from tests.unit.components.rewards.rows import reward, row


def score(tokens: int, **options: Any) -> Any:
    settings = {"max_completion_tokens": 100, "cache_tokens": 20, **options}
    return reward("soft_overlong", **settings)(row("", completion_token_ids=[7] * tokens))


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [(0, 0.0), (80, 0.0), (81, -0.05), (90, -0.5), (100, -1.0), (101, -1.0), (400, -1.0)],
)
def test_grows_over_the_cache_and_stays_at_minus_one(tokens: int, expected: float) -> None:
    assert score(tokens) == pytest.approx(expected)


def test_without_a_cache_it_is_a_step_behind_the_limit() -> None:
    assert [score(tokens, cache_tokens=0) for tokens in (99, 100, 101)] == [0.0, 0.0, -1.0]


def test_a_cache_as_long_as_the_limit_starts_at_once() -> None:
    assert [score(tokens, cache_tokens=100) for tokens in (0, 1, 50)] == [0.0, -0.01, -0.5]


def test_numbers_of_the_paper() -> None:
    paper = {"max_completion_tokens": 20480, "cache_tokens": 4096}
    assert score(16384, **paper) == 0.0
    assert score(18432, **paper) == -0.5


def test_the_text_does_not_matter() -> None:
    short = row("a" * 500, completion_token_ids=[7] * 3)
    assert reward("soft_overlong", max_completion_tokens=100, cache_tokens=20)(short) == 0.0


def test_a_cache_beyond_the_limit_is_refused() -> None:
    with pytest.raises(ValidationError, match="cache_tokens 30 must not be above"):
        reward("soft_overlong", max_completion_tokens=20, cache_tokens=30)
    with pytest.raises(ValidationError):
        reward("soft_overlong", cache_tokens=30)
