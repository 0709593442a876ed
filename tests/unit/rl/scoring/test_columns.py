import enum
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rollbook.components.rewards.base import Reward, RewardInput, RewardResult
from rollbook.components.rewards.outcomes import scored
from rollbook.core.errors import RewardError
from rollbook.rl.scoring.columns import Gathered, logged_columns, step_column
from rollbook.tables.schemas.base import STEP_REWARDS
from tests.unit.components.rewards.rows import row


class Said(Reward):
    """Says what it was told, in the order of rows."""

    results: Sequence[Any]

    def __call__(self, row: RewardInput) -> RewardResult:
        result: RewardResult = self.results[int(row.rollout_id[-2:])]
        return result


def gathered(label: str, results: Sequence[RewardResult], chunk: int = 99) -> Gathered:
    """As scored in chunks of some rows."""
    reward = Said(name="said", label=label, results=results)
    rows = [row("aaa", index=place) for place in range(len(results))]
    all_of_it = Gathered(reward, len(rows))
    for start in reversed(range(0, len(rows), chunk)):
        places = np.arange(start, min(start + chunk, len(rows)))
        all_of_it.add(places, scored(reward, [rows[place] for place in places]))
    return all_of_it


def logged(*logs: dict[str, Any], chunk: int = 99) -> dict[str, pa.Array]:
    results = [RewardResult(1.0, log) for log in logs]
    return logged_columns([gathered("one", results, chunk)], len(logs))


def ids_at(places: Sequence[int]) -> list[str]:
    return [f"g/{place:02d}" for place in places]


@pytest.mark.parametrize("chunk", [1, 2, 99])
def test_types_and_nulls(chunk: int) -> None:
    columns = logged(
        {"note": "a", "flag": True, "number": 1, "share": np.float32(0.5)},
        {"number": math.nan, "flag": None},
        {"number": 10**400, "share": math.inf, "flag": np.bool_(False)},
        chunk=chunk,
    )
    assert {name: (str(c.type), c.to_pylist()) for name, c in columns.items()} == {
        "flag": ("bool", [True, None, False]),
        "number": ("double", [1.0, None, None]),
        "share": ("double", [0.5, None, None]),
        "note": ("string", ["a", None, None]),
    }
    assert list(columns) == ["flag", "note", "number", "share"]  # by name, whatever came first


@pytest.mark.parametrize("chunk", [1, 99])
def test_truth_values_among_numbers_are_numbers(chunk: int) -> None:
    columns = logged({"x": True}, {"x": 0.5}, {"x": None}, {}, chunk=chunk)
    assert columns["x"].to_pylist() == [1.0, 0.5, None, None]


@pytest.mark.parametrize("chunk", [1, 99])
@pytest.mark.parametrize(
    ("logs", "reason"),
    [
        ([{"x": "a"}, {"x": 1}], "logs both numbers and texts as 'x'"),
        ([{"x": [1]}], "logs a list as 'x'"),
        ([{"x": {}}, {"x": 1}], "logs a dict as 'x'"),
        ([{"x": {}}, {"x": [1]}, {"x": 1}], "logs a dict, a list as 'x'"),
        ([{"x": np.zeros(2)}], "logs a ndarray as 'x'"),
    ],
)
def test_what_is_no_column_is_refused(logs: list[dict[str, Any]], reason: str, chunk: int) -> None:
    with pytest.raises(RewardError, match=reason):
        logged(*logs, chunk=chunk)


def test_of_a_text_only_the_text_is_kept() -> None:
    kind = enum.StrEnum("Kind", {"GOOD": "good"})
    assert logged({"x": kind.GOOD})["x"].to_pylist() == ["good"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "name",
    [
        "reward",
        "error",
        "step_rewards",
        "rollout_id",
        "iteration",
        "reward_x",
        "text",
        "greedy",
        "set",
    ],
)
def test_names_of_the_tables_own_columns_are_taken(name: str) -> None:
    with pytest.raises(RewardError, match=f"reward 'one' logs '{name}'"):
        logged({name: 1.0})


def test_half_a_surrogate_and_other_names_fit_in_a_table() -> None:
    columns = logged({"\ud800": "\udfff", 5: 1.0})  # type: ignore[dict-item]
    assert columns["\\ud800"].to_pylist() == ["\\udfff"]
    assert columns["5"].to_pylist() == [1.0]


def test_two_rewards_cannot_log_the_same_name() -> None:
    both = [gathered(label, [RewardResult(1.0, {"x": 1.0})]) for label in ("one", "two")]
    with pytest.raises(RewardError, match="rewards 'one' and 'two' both log 'x'"):
        logged_columns(both, 1)


@pytest.mark.parametrize("chunk", [1, 99])
def test_steps_are_ordered_by_their_end(chunk: int) -> None:
    results = [RewardResult(1.0, steps=[(3, 0.5), (1, 1.0)]), RewardResult(1.0)]
    column = step_column([gathered("one", results, chunk)], 2, ids_at)
    assert column.type == STEP_REWARDS
    assert column.to_pylist() == [[{"end": 1, "value": 1.0}, {"end": 3, "value": 0.5}], None]


def test_steps_come_from_one_reward_only() -> None:
    result = RewardResult(1.0, steps=[(0, 1.0)])
    one, two = gathered("one", [RewardResult(1.0), result, result]), gathered("two", [result] * 3)
    with pytest.raises(RewardError, match=r"/01: rewards 'one' and 'two' both return step rewards"):
        step_column([one, two], 3, ids_at)
