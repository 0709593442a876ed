"""The scorers of reasoning-gym: right answers, tags, worker processes, and answers that would run as code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollbook.components.reasoning_tasks import COLUMN, data_set, packed
from rollbook.components.rewards.base import RewardInput, RewardResult
from rollbook.components.rewards.reasoning_gym import is_plain, runs_code
from rollbook.core.errors import RewardError
from rollbook.rl.scoring.scorer import score_groups
from tests.unit.components.rewards.rows import reward, row

pytest.importorskip("reasoning_gym")


def asked(task: str, text: str, place: int = 0, **config: Any) -> RewardInput:
    """A completion of a task's question."""
    entry = data_set(task, {**config, "seed": 1, "size": 10})[place]
    column = packed(task, config, entry)
    answer = entry["answer"] or ""
    return row(text.replace("ANSWER", answer), answer, columns={COLUMN: column})


def scored(task: str, text: str, **config: Any) -> RewardResult:
    result = reward("reasoning_gym")(asked(task, text, **config))
    assert isinstance(result, RewardResult)
    return result


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("ANSWER", 1.0),
        (" ANSWER\n", 1.0),
        ("<think>0</think> <answer> ANSWER </answer> so.", 1.0),
        ("<think>ANSWER", 0.0),
        ("<answer>no</answer> ANSWER", 0.0),
        ("", 0.0),
    ],
)
def test_the_answer_is_behind_the_thought_and_between_the_tags(text: str, value: float) -> None:
    assert scored("chain_sum", text).value == value


def test_partial_credit_is_the_tasks_own() -> None:
    entry_answer = data_set("chain_sum", {"seed": 1, "size": 1})[0]["answer"]
    text = f"it is {entry_answer}"
    assert scored("chain_sum", text).value == pytest.approx(len(entry_answer) / len(text))


def test_a_prompt_of_another_source_is_not_its_business() -> None:
    assert reward("reasoning_gym")(row("7", "7")) == RewardResult(None)


@pytest.mark.parametrize("column", ["", "{}", '{"task": "nonesuch", "config": {}, "entry": {}}'])
def test_a_broken_column_is_an_error_of_the_row(column: str) -> None:
    with pytest.raises(RewardError, match="column reasoning_gym"):
        reward("reasoning_gym")(row("7", "7", columns={COLUMN: column}))


def test_worker_processes_say_the_same() -> None:
    rows = [
        asked(task, text)
        for task in ("chain_sum", "countdown", "spiral_matrix")
        for text in ("ANSWER", "1", "")
    ]
    rows = [
        RewardInput(**{**vars(each), "rollout_id": f"i0003/0123456789abcdef/{place:02d}"})
        for place, each in enumerate(rows)
    ]
    here, there = (
        score_groups([reward("reasoning_gym")], rows, processes=count)["reward_reasoning_gym"]
        for count in (0, 2)
    )
    assert here.to_pylist() == there.to_pylist()
    assert here.to_pylist()[::3] == [1.0, 1.0, 1.0]


def test_answers_do_not_run_as_code(tmp_path: Path) -> None:
    """string_insertion hands the answer to eval, countdown to SymPy, which does the same."""
    place = tmp_path / "written"
    for task in ("string_insertion", "countdown"):
        for text in (f"open({str(place)!r}, 'w')", f"[open({str(place)!r}, 'w') for _ in [0]]"):
            result = scored(task, f"<answer>{text}</answer>")
            assert result.value == 0.0
            assert dict(result.log) == {"reasoning_gym_reason": "is no plain expression"}
    assert not place.exists()
    data_set("string_insertion", {"seed": 1, "size": 1}).score_answer(
        f"open({str(place)!r}, 'w')", {"answer": "A", "question": "", "metadata": {}}
    )
    assert place.exists()  # so the scorer itself would


def test_which_scorers_run_code_is_read_from_their_source() -> None:
    kinds = {
        name: type(data_set(name, {"size": 1})) for name in ("countdown", "chain_sum", "n_queens")
    }
    found = {name: runs_code(kind.score_answer) for name, kind in kinds.items()}
    assert found == {"countdown": True, "chain_sum": False, "n_queens": True}


@pytest.mark.parametrize(
    "answer",
    [
        *(
            "3*(4+5)",
            "-2",
            "x**2 + sin(x)/3 + C",
            "['a', 'b']",
            "[[1, 2], [3, 4]]",
            "x**(3/2)",
            "5!",
        ),
        *("1 2 3\n4 5 6", "_ Q _\nQ _ _", "AABC", "", "2**10"),
    ],
)
def test_plain(answer: str) -> None:
    assert is_plain(answer)


@pytest.mark.parametrize(
    "answer",
    [
        *(
            "__import__('os').system('id')",
            "(1).__class__",
            "print(3)",
            "lambda: 3",
            "x.y",
            "f'{x}'",
        ),
        *("[x for x in y]", "a[0]", "9**9**9", "9**(99*99)", "(9**99)**99", "2**1e9", "9" * 50),
        *("__import__('os')!", "open(\nx", "(" * 500, "7" * 3000, "x if y else z", "{1: 2}"),
    ],
)
def test_not_plain(answer: str) -> None:
    assert not is_plain(answer)
