import pytest

from rollbook.components.rewards.answers import (
    behind_thought,
    final_answer,
    last_boxes,
    opens_thought,
    tagged_answer,
)


@pytest.mark.parametrize(
    ("text", "prompt", "expected"),
    [
        ("7", "", "7"),
        ("<think>a</think>7", "", "7"),
        ("<think>a</think>b</think>7", "", "7"),
        ("<think>a</think>7<think>8", "", "7"),
        ("<think>7", "", ""),
        ("7", "x<think>\n", ""),
        ("a</think>7", "x<think>", "7"),
        ("7", "<think>x", "7"),
    ],
)
def test_behind_thought(text: str, prompt: str, expected: str) -> None:
    assert behind_thought(text, prompt) == expected


def test_opens_thought() -> None:
    assert opens_thought("<assistant><think>\n")
    assert not opens_thought("<think>a</think>")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<answer>7</answer>", "7"),
        ("<answer>7</answer> or <answer>8</answer>", "8"),
        ("<answer></answer>", ""),
        ("<answer>7", None),
        ("7</answer>", None),
        ("</answer>7<answer>", None),
        ("7", None),
    ],
)
def test_tagged_answer(text: str, expected: str | None) -> None:
    assert tagged_answer(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\boxed{7}", ["7"]),
        (r"\boxed{\frac{1}{2}}", [r"\frac{1}{2}"]),
        (r"\boxed{\{1\}}", [r"\{1\}"]),
        (r"\boxed{6} so \boxed{7}", ["7"]),
        (r"$\boxed{6}$, \boxed{7} and \boxed{8}.", ["6", "7", "8"]),
        (r"\boxed{6}, but \boxed{7} or \boxed{8}", ["7", "8"]),
        (r"\boxed{\boxed{7}}", ["7"]),
        (r"\boxed{7", []),
        (r"\boxed{6}, \boxed{7", []),
        ("7", []),
    ],
)
def test_last_boxes(text: str, expected: list[str]) -> None:
    assert last_boxes(text) == expected


@pytest.mark.parametrize(
    ("reference", "answer"),
    [
        ("She has 3+4=7 eggs.\n#### 1,007", "1,007"),
        ("#### 1\n#### 2", "2"),
        ("#### -5", "-5"),
        ("#### 0.25", "0.25"),
        ("#### .5", ".5"),
        ("#### $5", "5"),
        ("#### -$5.50", "-5.50"),
        ("#### 42.", "42"),
        ("#### $1,234.50.", "1,234.50"),
        ("####7", "7"),
        (r"#### \frac{1}{2}", r"\frac{1}{2}"),
        ("#### 5%", "5%"),
        ("#### 1.2.3", "1.2.3"),
        ("#### Paris.", "Paris."),
        ("####", ""),
        ("$5", "$5"),  # without the mark nothing is taken off
        (" 7. ", " 7. "),
    ],
)
def test_final_answer_of_a_reference(reference: str, answer: str) -> None:
    assert final_answer(reference) == answer
