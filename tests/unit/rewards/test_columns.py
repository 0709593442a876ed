import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipeline.errors import RewardError
from pipeline.rewards.base import Reward, RewardResult
from pipeline.rewards.columns import logged_columns, step_column
from pipeline.schemas.base import STEP_REWARDS
from tests.unit.rewards.rows import row

ONE, TWO = Reward(name="one"), Reward(name="two")


def logged(*logs: dict[str, Any]) -> dict[str, pa.Array]:
    return logged_columns([ONE], [[RewardResult(1.0, log) for log in logs]])


def test_types_and_nulls() -> None:
    columns = logged(
        {"note": "a", "flag": True, "number": 1, "share": np.float32(0.5)},
        {"number": math.nan, "flag": None},
        {"number": 10**400, "share": math.inf, "flag": np.bool_(False)},
    )
    assert {name: (str(c.type), c.to_pylist()) for name, c in columns.items()} == {
        "flag": ("bool", [True, None, False]),
        "number": ("double", [1.0, None, None]),
        "share": ("double", [0.5, None, None]),
        "note": ("string", ["a", None, None]),
    }
    assert list(columns) == ["flag", "note", "number", "share"]  # by name, whatever came first


def test_truth_values_among_numbers_are_numbers() -> None:
    assert logged({"x": True}, {"x": 0.5})["x"].to_pylist() == [1.0, 0.5]


@pytest.mark.parametrize(
    ("logs", "reason"),
    [
        ([{"x": "a"}, {"x": 1}], "logs both numbers and texts as 'x'"),
        ([{"x": [1]}], "logs a list as 'x'"),
        ([{"x": {}}, {"x": 1}], "logs a dict as 'x'"),
    ],
)
def test_what_is_no_column_is_refused(logs: list[dict[str, Any]], reason: str) -> None:
    with pytest.raises(RewardError, match=reason):
        logged(*logs)


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


def test_two_rewards_cannot_log_the_same_name() -> None:
    results = [[RewardResult(1.0, {"x": 1.0})], [RewardResult(1.0, {"x": 1.0})]]
    with pytest.raises(RewardError, match="rewards 'one' and 'two' both log 'x'"):
        logged_columns([ONE, TWO], results)


def test_steps_are_ordered_by_their_end() -> None:
    results = [[RewardResult(1.0, steps=[(3, 0.5), (1, 1.0)]), RewardResult(1.0)]]
    column = step_column([ONE], [row("aaa"), row("b")], results)
    assert column.type == STEP_REWARDS
    assert column.to_pylist() == [[{"end": 1, "value": 1.0}, {"end": 3, "value": 0.5}], None]


def test_steps_come_from_one_reward_only() -> None:
    results = [[RewardResult(1.0, steps=[(0, 1.0)])], [RewardResult(1.0, steps=[(0, 1.0)])]]
    with pytest.raises(RewardError, match=r"/00: rewards 'one' and 'two' both return step rewards"):
        step_column([ONE, TWO], [row("a")], results)
