"""The built-in task: both sides of the split, for every seed and size."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from rollbook.core.errors import DataError
from rollbook.core.registry import build


def records(role: Any, split_seed: int = 0, **options: Any) -> list[dict[str, Any]]:
    return list(build("sources", {"name": "arithmetic", **options}).records(role, split_seed))


def contents(rows: list[dict[str, Any]]) -> list[str]:
    return [row["messages"][0]["content"] for row in rows]


def test_all_problems_are_on_exactly_one_side_with_the_right_answer() -> None:
    train, evaluation = records("train"), records("evaluation")
    both = contents(train) + contents(evaluation)
    assert len(both) == len(set(both)) == 900
    assert {f"{a}+{b}=" for a in range(30) for b in range(30)} == set(both)
    for row in (*train, *evaluation):
        left, right = row["messages"][0]["content"].rstrip("=").split("+")
        assert row["reference_answer"] == str(int(left) + int(right))
        assert row["operands"] == [int(left), int(right)]
        assert [message["role"] for message in row["messages"]] == ["user"]


def test_both_orders_of_a_sum_are_on_the_same_side() -> None:
    """`7+5` in training would give away `5+7` in evaluation."""
    train = {tuple(sorted(row["operands"])) for row in records("train")}
    evaluation = {tuple(sorted(row["operands"])) for row in records("evaluation")}
    assert not train & evaluation


def test_sides_do_not_depend_on_range_or_operators() -> None:
    evaluation = {
        tuple(sorted(row["operands"])) for row in records("evaluation", below=12, minimum=3)
    }
    train = {tuple(sorted(row["operands"])) for row in records("train", operators=["+", "-", "*"])}
    assert evaluation and not train & evaluation


@pytest.mark.parametrize("split_seed", range(50))
def test_256_evaluation_prompts_exist_by_default(split_seed: int) -> None:
    """Expected are 0.4 · 900 = 360, give or take 2·sqrt(465 · 0.24) = 21; over 3,000 seeds the fewest were 290."""
    assert len(records("evaluation", split_seed, prompts=256)) == 256


def test_seed_decides_split_and_order() -> None:
    assert records("train", 1) == records("train", 1)
    assert set(contents(records("train", 1))) != set(contents(records("train", 2)))
    first = contents(records("train", 1))
    assert first != sorted(first)


def test_fewer_prompts_are_the_first_of_more() -> None:
    assert records("train", prompts=10) == records("train", prompts=20)[:10]


def test_operators() -> None:
    rows = {
        row["messages"][0]["content"]: row["reference_answer"]
        for row in records("train", operators=["-", "*"])
    }
    rows |= {
        r["messages"][0]["content"]: r["reference_answer"]
        for r in records("evaluation", operators=["-", "*"])
    }
    assert len(rows) == 1800
    assert (rows["3-12="], rows["7*8="]) == ("-9", "56")


def test_more_prompts_than_there_are() -> None:
    with pytest.raises(
        DataError, match=r"300 prompts are wanted for evaluation, its side has \d+\n.*at most"
    ):
        records("evaluation", below=10, prompts=300)


def test_impossible_ranges_are_refused() -> None:
    for options, message in (
        ({"minimum": 30}, r"`below` \(30\) must be above `minimum` \(30\)"),
        ({"below": 10_000}, "100,000,000 problems"),
        ({"operators": ["/"]}, "operators.0\n  input should be"),
        ({"operators": []}, "at least 1"),
    ):
        with pytest.raises(ValidationError, match=message):
            build("sources", {"name": "arithmetic", **options})


def test_the_template_changes_nothing_but_the_words() -> None:
    options: dict[str, Any] = {"minimum": 1, "below": 50}
    asked = "What is {left} + {right}? Answer with just the number."
    plain, worded = records("train", **options), records("train", **options, template=asked)
    assert [row["operands"] for row in plain] == [row["operands"] for row in worded]
    left, right = worded[0]["operands"]
    assert contents(worded)[0] == f"What is {left} + {right}? Answer with just the number."
    assert contents(records("train", template="{{{left}{sign}{right}}}"))[0].startswith("{")


@pytest.mark.parametrize(
    "template", ["{left}", "{left}{right}{other}", "{left.real}{right}", "{left!r}{right}", "{"]
)
def test_a_template_without_the_problem_is_refused(template: str) -> None:
    with pytest.raises(ValidationError, match="template"):
        records("train", template=template)
