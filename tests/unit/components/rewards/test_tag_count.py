from typing import Any

import pytest
from pydantic import ValidationError

from tests.unit.components.rewards.rows import reward, row

GOOD = "<think>\na\n</think>\n<answer>\n7\n</answer>"


def score(text: str, prompt: str = "p", **options: Any) -> Any:
    return reward("tag_count", **options)(row(text, prompt=prompt))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (GOOD, 1.0),
        ("<think>a</think><answer>7</answer>", 1.0),
        ("</answer><answer></think><think>", 1.0),
        ("<think>a</think> 7", 0.5),
        ("<think><think>a</think><answer>7</answer>", 0.75),
        ("7", 0.0),
        ("", 0.0),
        ("<THINK>", 0.0),
    ],
)
def test_counts_tags_that_occur_once(text: str, value: float) -> None:
    assert score(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [(GOOD, 1.0), ("<think>a</think><answer>7</answer>", 0.0), (GOOD.replace("\n7\n", "7"), 0.5)],
)
def test_with_line_ends_as_open_r1_counts(text: str, value: float) -> None:
    assert score(text, newlines=True) == value


def test_a_prompt_may_have_opened_the_first_tag() -> None:
    answer = GOOD.removeprefix("<think>\n")
    assert score(answer, prompt="…<think>\n", newlines=True) == 1.0
    assert score(answer, prompt="…<think>") == 1.0
    assert score(GOOD, prompt="…<think>\n") == 0.75
    assert score(answer) == 0.75


def test_tags_of_the_users_own_and_raw_text() -> None:
    assert score("<plan>x", tags=["<plan>", "</plan>"]) == 0.5
    assert score("x", tags=["<eos>"]) == 0.0
    assert score("x", tags=["<eos>"], raw=True) == 1.0
    for tags in ([], [""]):
        with pytest.raises(ValidationError):
            score("x", tags=tags)
