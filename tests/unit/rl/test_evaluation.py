import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from rollbook.rl.evaluation import (
    Estimate,
    evaluation_metrics,
    interval,
    paired_difference,
    pass_at,
    prompt_means,
)

Z = 1.959963984540054
Reward = float | None


def _table(
    sets: dict[str, dict[str, Sequence[Reward]]],
    greedy: dict[str, Sequence[Reward]] | None = None,
    lenient: float | None = None,
    errors: int = 0,
    truncated: int = 0,
) -> pa.Table:
    """Sampled rewards by set and prompt; one greedy reward per prompt, in the order of prompts."""
    rows: list[dict[str, Any]] = []
    for name, prompts in sets.items():
        for place, (prompt, rewards) in enumerate(prompts.items()):
            for reward in rewards:
                rows.append({"set": name, "prompt_id": prompt, "greedy": False, "reward": reward})
            if greedy:
                rows.append(
                    {
                        "set": name,
                        "prompt_id": prompt,
                        "greedy": True,
                        "reward": greedy[name][place],
                    }
                )
    table = pa.Table.from_pylist(
        rows,
        pa.schema(
            [
                ("set", pa.string()),
                ("prompt_id", pa.string()),
                ("greedy", pa.bool_()),
                ("reward", pa.float64()),
            ]
        ),
    )
    count = len(rows)
    columns: dict[str, Any] = {
        "error": pa.array(["broken"] * errors + [None] * (count - errors), pa.string()),
        "finish_reason": ["length"] * truncated + ["stop"] * (count - truncated),
    }
    if lenient is not None:
        columns["numeric_answer_lenient"] = pa.array([lenient] * count, pa.float64())
    for name, values in columns.items():
        table = table.append_column(name, pa.array(values) if isinstance(values, list) else values)
    return table


HELDOUT = {"heldout": {"a": [1, 1, 0, 0], "b": [0, 0, 0, 0], "c": [1, 1, 1, 1]}}


def test_the_mean_is_over_prompts_with_an_interval_over_prompts() -> None:
    metrics = evaluation_metrics(_table(HELDOUT), 4, "none")
    # Prompt means 0.5, 0, 1: mean 0.5, sample deviation 0.5, half width 1.96·0.5/√3 = 0.5658; both ends are clipped.
    assert metrics["eval/heldout/mean_at_4"] == 0.5
    assert metrics["eval/heldout/mean_at_4_low"] == 0.0
    assert metrics["eval/heldout/mean_at_4_high"] == 1.0
    assert metrics["eval/heldout/prompts"] == 3


def test_the_interval_by_hand() -> None:
    estimate = interval([0.25, 0.5, 0.75, 0.5])
    # Mean 0.5; squared deviations 0.0625 + 0 + 0.0625 + 0 = 0.125, /3, root 0.204124; /√4 = 0.102062; ·1.96
    assert estimate.mean == 0.5
    assert estimate.high - 0.5 == pytest.approx(Z * 0.10206207261596577)
    assert 0.5 - estimate.low == pytest.approx(Z * 0.10206207261596577)


def test_an_interval_of_one_prompt_is_unknown_and_of_none_all_is() -> None:
    assert interval([0.5]).mean == 0.5
    assert math.isnan(interval([0.5]).low)
    assert math.isnan(interval([]).mean)


def test_rewards_that_are_no_shares_are_not_clipped_and_have_no_pass_rate() -> None:
    metrics = evaluation_metrics(_table({"s": {"a": [-2, 3], "b": [0.5, 0.5]}}), 2, "none")
    # Means 0.5 and 0.5: no spread.
    assert metrics["eval/s/mean_at_2"] == metrics["eval/s/mean_at_2_low"] == 0.5
    metrics = evaluation_metrics(_table({"s": {"a": [4, 4], "b": [0, 0]}}), 2, "none")
    assert metrics["eval/s/mean_at_2_low"] == pytest.approx(2 - Z * math.sqrt(8) / math.sqrt(2))
    assert not [name for name in metrics if "pass_at" in name]


def test_pass_at_k_is_unbiased() -> None:
    table = _table(
        {"s": {"a": [1, 0, 0, 0], "b": [1, 1, 0, 0], "c": [0, 0, 0, 0], "d": [1, 1, 1, 1]}}
    )
    # n = 4, k = 2: 1 − C(3,2)/C(4,2) = 1 − 3/6; 1 − C(2,2)/6 = 5/6; 1 − 6/6; 1 − 0.
    assert pass_at(table, 2) == pytest.approx({"a": 0.5, "b": 5 / 6, "c": 0.0, "d": 1.0})
    assert pass_at(table, 1) == pytest.approx({"a": 0.25, "b": 0.5, "c": 0.0, "d": 1.0})
    assert evaluation_metrics(table, 4, "none")["eval/s/pass_at_4"] == 0.75


def test_prompts_with_too_few_scored_samples_have_no_pass_rate() -> None:
    table = _table({"s": {"a": [1, 0, None, None], "b": [0, 0, 0, 1]}})
    assert pass_at(table, 3) == pytest.approx({"b": 0.75})  # 1 − C(3,3)/C(4,3)


def test_the_greedy_answer_is_counted_apart() -> None:
    metrics = evaluation_metrics(_table(HELDOUT, {"heldout": [1, 0, 1]}), 4, "none")
    assert metrics["eval/heldout/mean_at_4"] == 0.5
    assert metrics["eval/heldout/greedy"] == pytest.approx(2 / 3)
    # Deviation of 1, 0, 1: √(1/3); half width 1.96·0.57735/√3 = 0.6533
    assert metrics["eval/heldout/greedy_low"] == pytest.approx(2 / 3 - Z / 3)
    assert metrics["eval/heldout/greedy_high"] == 1.0
    assert "eval/heldout/greedy" not in evaluation_metrics(_table(HELDOUT), 4, "none")


def test_rows_without_a_reward_are_left_out_and_failures_counted() -> None:
    table = _table({"s": {"a": [None, 1, 0, 1], "b": [0, 0, 0, 0], "c": [None] * 4}}, errors=1)
    metrics = evaluation_metrics(table, 4, "none")
    assert metrics["eval/s/mean_at_4"] == pytest.approx((2 / 3 + 0) / 2)
    assert metrics["eval/s/errors"] == 1
    assert metrics["eval/s/prompts"] == 3


def test_the_lenient_reading_stands_beside_the_strict_one() -> None:
    table = _table(HELDOUT, {"heldout": [1, 0, 1]}, lenient=1.0)
    metrics = evaluation_metrics(table, 4, "numeric_answer")
    assert metrics["eval/heldout/mean_at_4"] == 0.5
    assert metrics["eval/heldout/mean_at_4_lenient"] == 1.0
    assert metrics["eval/heldout/greedy_lenient"] == 1.0
    assert metrics["eval/heldout/mean_at_4_lenient_low"] == 1.0
    assert not [name for name in evaluation_metrics(table, 4, "absent") if "lenient" in name]


def test_sets_are_counted_apart_even_if_they_share_prompts() -> None:
    metrics = evaluation_metrics(_table({"x": {"a": [1, 1]}, "y": {"a": [0, 0]}}), 2, "none")
    assert (metrics["eval/x/mean_at_2"], metrics["eval/y/mean_at_2"]) == (1.0, 0.0)


def test_truncated_completions_are_counted() -> None:
    metrics = evaluation_metrics(_table(HELDOUT, truncated=3), 4, "none")
    assert metrics["eval/heldout/clipped_ratio"] == 0.25


def test_the_order_of_rows_does_not_matter() -> None:
    table = _table({"s": {name: [0.1, 0.7, 0.3] for name in "abcdefg"}}, {"s": [0.1] * 7})
    backwards = table.take(list(range(table.num_rows))[::-1])
    first, second = (evaluation_metrics(each, 3, "none") for each in (table, backwards))
    assert first == pytest.approx(second, abs=1e-15)


def test_a_difference_is_paired_by_prompt() -> None:
    before = _table(
        {"s": {"a": [0, 0], "b": [1, 0], "c": [1, 1], "only": [1, 1]}}, {"s": [1, 1, 1, 1]}
    )
    after = _table({"s": {"c": [1, 1], "b": [1, 1], "a": [1, 0]}}, {"s": [0, 0, 0]})
    difference, low, high = paired_difference(before, after, "s")
    # Differences a +0.5, b +0.5, c 0: mean 1/3, deviation √(1/12) = 0.288675, half width 1.96·0.288675/√3 = 1.96/6
    assert difference == pytest.approx(1 / 3)
    assert (low, high) == pytest.approx((1 / 3 - Z / 6, 1 / 3 + Z / 6))
    assert paired_difference(after, before, "s")[0] == pytest.approx(-1 / 3)
    assert math.isnan(paired_difference(before, after, "other")[0])


def test_prompt_means_take_truth_values() -> None:
    table = pa.table({"prompt_id": ["a", "a", "b"], "right": [True, False, True]})
    assert prompt_means(table, "right") == {"a": 0.5, "b": 1.0}


@pytest.mark.parametrize(
    ("estimate", "share", "text"),
    [
        (Estimate(0.98, 0.94, 1.02), True, "98% [94%, 100%]"),
        (Estimate(0.01, -0.02, 0.04), True, "1% [0%, 4%]"),
        (Estimate(0.98, 0.94, 1.02), False, "98% [94%, 102%]"),
        (Estimate(0.5, math.nan, math.nan), True, "50%"),
    ],
)
def test_an_interval_in_words(estimate: Estimate, share: bool, text: str) -> None:
    assert estimate.text(".0%", share=share) == text
