"""Questions of reasoning-gym: two sides without overlap, the same bytes in every process, tables that can be scored."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from pydantic import ValidationError

from rollbook.components.reasoning_tasks import data_set, packed, unpacked
from rollbook.components.sources.reasoning_questions import questions
from rollbook.core.errors import DataError
from rollbook.core.registry import build

pytest.importorskip("reasoning_gym")


def source(**options: Any) -> Any:
    return build("sources", {"name": "reasoning_gym", **options})


def made(task: str = "leg_counting", size: int = 20, **changes: Any) -> list[dict[str, Any]]:
    """Questions made in this process."""
    request: dict[str, Any] = {"task": task, "config": {}, "size": size, "seed": 0}
    request |= {"split_seed": 0, "role": "train", "evaluation_share": 0.5, **changes}
    return list(questions(request))


def contents(rows: list[dict[str, Any]]) -> list[str]:
    return [row["messages"][0]["content"] for row in rows]


def test_several_tasks_come_one_after_the_other_and_always_the_same() -> None:
    """word_ladder and ransom_note go through sets, so another process would give others without a fixed hash seed."""
    wanted = source(
        tasks={"ransom_note": {}, "chain_sum": {"min_terms": 4, "max_terms": 4}}, size=3
    )
    first, second = (list(wanted.records("train", 0)) for _ in range(2))
    assert first == second
    assert [row["task"] for row in first] == ["ransom_note"] * 3 + ["chain_sum"] * 3
    for row in first[3:]:
        expression = row["messages"][0]["content"].partition(": ")[2].rstrip(" =")
        assert row["reference_answer"] == str(eval(expression))
        assert len(expression.split()) == 7  # four terms
    scorer, entry = unpacked(first[-1]["reasoning_gym"])
    assert scorer.score_answer(first[-1]["reference_answer"], entry) == 1.0


def test_sides_do_not_overlap_and_larger_sets_begin_with_smaller_ones() -> None:
    train, evaluation = made(), made(role="evaluation")
    assert len(set(contents(train)) | set(contents(evaluation))) == 40
    assert made(size=40)[:20] == train


def test_seeds_decide() -> None:
    asked = contents(made())
    assert contents(made(seed=1)) != asked != contents(made(split_seed=1))
    assert made() == made()


def test_a_task_without_enough_questions_says_how_many_there_are() -> None:
    few = {"config": {"min_trials": 3, "max_trials": 3}, "size": 50}
    with pytest.raises(
        ValueError, match=r"coin_flip has \d+ different questions for train .* lower `size`"
    ):
        made("coin_flip", **few)


def test_errors_of_the_program_become_errors_of_the_data() -> None:
    with pytest.raises(DataError, match="there is no task 'chain_sums'; did you mean 'chain_sum'"):
        list(source(task="chain_sums").records("train", 0))


def test_settings_a_task_does_not_take_are_named() -> None:
    for config, reason in (
        ({"terms": 3}, "unexpected keyword"),
        ({"min_terms": 0}, "min_terms must be"),
    ):
        with pytest.raises(ValueError, match=f"chain_sum does not take .*{reason}"):
            data_set("chain_sum", config)


def test_a_missing_package_is_told_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    with pytest.raises(ValueError, match=r"needs the package reasoning-gym: pip install 'rollbook"):
        data_set("chain_sum", {})


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"task": "chain_sum", "tasks": {"leg_counting": {}}},
        {"tasks": {"leg_counting": {}}, "config": {"min_terms": 2}},
        {"task": "chain_sum", "config": {"seed": 3}},
        {"tasks": {"chain_sum": {"size": 3}}},
    ],
)
def test_tasks_are_named_once_and_seeds_are_the_sources(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        source(**options)


def test_a_question_comes_back_as_it_was() -> None:
    """JSON knows no tuples and no keys that are numbers."""
    entry = {
        "question": "?",
        "answer": None,
        "metadata": {"edges": [(1, 2), ()], "colors": {1: [0.5], (2, 3): "x"}, "none": {}},
    }
    assert unpacked(packed("chain_sum", {}, entry))[1] == entry
    kept = unpacked(packed("chain_sum", {}, entry))[1]["metadata"]["edges"][0]
    assert isinstance(kept, tuple)


@pytest.mark.parametrize(
    "task", ["rearc", "arc_1d", "graph_color", "rotate_matrix", "knights_knaves"]
)
def test_scorers_say_the_same_of_what_was_kept(task: str) -> None:
    """Of these, two compare tuples, and one reads keys that are numbers."""
    made_here = data_set(task, {"seed": 3, "size": 2})
    entry = made_here[0]
    scorer, kept = unpacked(packed(task, {}, entry))
    for answer in (entry["answer"], entry["metadata"].get("possible_answer"), "no", ""):
        text = None if answer is None else str(answer)
        assert scorer.score_answer(text, kept) == made_here.score_answer(text, entry)
    if entry["answer"] is not None:
        assert scorer.score_answer(entry["answer"], kept) == 1.0
