from typing import Any

import pytest
from pydantic import ValidationError

from tests.unit.components.rewards.rows import reward, row


def score(ids: list[int], **options: Any) -> Any:
    return reward("repetition_penalty", **options)(row("", completion_token_ids=ids))


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([], 0.0),
        ([1, 2], 0.0),
        ([1, 2, 3], 0.0),
        ([1, 2, 3, 4], 0.0),
        ([5] * 6, -0.75),  # one distinct of four
        ([1, 2, 3, 1, 2, 3], -0.25),  # three distinct of four
        ([1, 2, 3, 3, 2, 1], 0.0),  # order counts
    ],
)
def test_charges_the_share_of_ngrams_that_come_again(ids: list[int], expected: float) -> None:
    assert score(ids) == pytest.approx(expected)


def test_size_and_height_can_be_set() -> None:
    assert score([5] * 5, ngram_size=2, max_penalty=-2.0) == pytest.approx(-1.5)
    assert score([1, 1, 2, 2], ngram_size=1) == pytest.approx(-0.5)
    assert score([5] * 5, ngram_size=2, max_penalty=0.0) == 0.0


@pytest.mark.parametrize("options", [{"max_penalty": 0.5}, {"ngram_size": 0}])
def test_a_penalty_is_no_reward(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        score([1, 2, 3], **options)
