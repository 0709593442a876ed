"""How the history of prompts grows and what it says."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest

from rollbook.core.errors import SchemaError
from rollbook.rl.history import Outcomes, extended, standing_of
from rollbook.tables.artifacts import schema_of
from tests.builders import history_row, table

A, B, C = (letter * 16 for letter in "abc")
EMPTY = schema_of("history").empty()


def outcomes(**means: tuple[bool, int, float]) -> Outcomes:
    """By prompt: informative, scored rollouts, mean reward."""
    informative, scored, mean = (np.array(each) for each in zip(*means.values(), strict=True))
    return Outcomes(pa.array([name * 16 for name in means]), informative, scored, mean)


def by_prompt(history: pa.Table, name: str) -> dict[str, object]:
    schema_of("history").validate(history, "test")
    return dict(zip(history["prompt_id"].to_pylist(), history[name].to_pylist(), strict=True))


def test_a_chain_of_iterations() -> None:
    first = extended(EMPTY, "i0001", outcomes(a=(True, 4, 0.25), b=(False, 4, 1.0)))
    second = extended(first, "i0002", outcomes(c=(False, 0, math.nan), a=(False, 2, 1.0)))
    third = extended(second, "i0003", outcomes(c=(True, 2, 0.5)))
    assert by_prompt(third, "times_asked") == {B: 1, A: 2, C: 2}
    assert by_prompt(third, "times_informative") == {B: 0, A: 1, C: 1}
    assert by_prompt(third, "scored_rollouts") == {B: 4, A: 6, C: 2}
    assert by_prompt(third, "mean_reward") == {B: 1.0, A: pytest.approx(3 / 6), C: 0.5}
    assert by_prompt(third, "last_iteration") == {B: "i0001", A: "i0002", C: "i0003"}
    assert by_prompt(third, "last_informative") == {B: False, A: False, C: True}
    assert by_prompt(third, "last_mean_reward") == {B: 1.0, A: 1.0, C: 0.5}
    assert by_prompt(second, "mean_reward")[C] is None
    assert by_prompt(second, "last_mean_reward")[C] is None


def test_those_asked_last_stand_at_the_end() -> None:
    first = extended(EMPTY, "i0001", outcomes(a=(True, 4, 0.5), b=(True, 4, 0.5)))
    second = extended(first, "i0002", outcomes(c=(True, 4, 0.5), a=(True, 4, 0.5)))
    assert second["prompt_id"].to_pylist() == [B, C, A]
    assert set(second["iteration"].to_pylist()) == {"i0002"}


def test_only_the_last_time_says_whether_a_prompt_is_flat() -> None:
    history = table(
        "history",
        [
            history_row(A, informative=False, times_asked=3, times_informative=2),
            history_row(B, informative=True),
        ],
    )
    standing = standing_of(history, pa.array([C, B, A]))
    assert standing.asked.tolist() == [False, True, True]
    assert standing.flat.tolist() == [False, False, True]
    nothing = standing_of(EMPTY, pa.array([A]))
    assert (nothing.asked.tolist(), nothing.flat.tolist()) == ([False], [False])


@pytest.mark.parametrize(
    "changes",
    [
        {"times_asked": 0, "times_informative": 0},
        {"times_informative": 2},
        {"scored_rollouts": -1},
        {"mean_reward": math.inf},
        {"last_mean_reward": math.nan},
    ],
)
def test_impossible_histories_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(SchemaError):
        table("history", [history_row(A, **changes)])


def test_a_prompt_stands_in_it_once() -> None:
    with pytest.raises(SchemaError):
        table("history", [history_row(A), history_row(A)])
