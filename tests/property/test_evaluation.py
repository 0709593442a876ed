"""Evaluation numbers against loops written from their definitions."""

from __future__ import annotations

import itertools
import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.rl.evaluation import evaluation_metrics, paired_difference

SAMPLES = 4
rewards = st.lists(st.sampled_from([0.0, 1.0]), min_size=SAMPLES, max_size=SAMPLES)
evaluations = st.lists(rewards, min_size=2, max_size=8)


def _table(groups: list[list[float]]) -> pa.Table:
    rows = [(f"p{place}", reward) for place, group in enumerate(groups) for reward in group]
    return pa.table(
        {
            "set": ["s"] * len(rows),
            "prompt_id": [prompt for prompt, _ in rows],
            "greedy": [False] * len(rows),
            "reward": [reward for _, reward in rows],
            "error": pa.nulls(len(rows), pa.string()),
            "finish_reason": ["stop"] * len(rows),
        }
    )


def _mean_and_half(values: list[float]) -> tuple[float, float]:
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, 1.959963984540054 * math.sqrt(variance / len(values))


@given(evaluations)
def test_mean_and_its_interval(groups: list[list[float]]) -> None:
    metrics = evaluation_metrics(_table(groups), SAMPLES, "none")
    mean, half = _mean_and_half([math.fsum(group) / SAMPLES for group in groups])
    assert metrics["eval/s/mean_at_4"] == pytest.approx(mean)
    assert metrics["eval/s/mean_at_4_low"] == pytest.approx(max(0.0, mean - half), abs=1e-12)
    assert metrics["eval/s/mean_at_4_high"] == pytest.approx(min(1.0, mean + half))


@given(evaluations, st.integers(1, SAMPLES))
def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer(
    groups: list[list[float]], k: int
) -> None:
    metrics = evaluation_metrics(_table(groups), k, "none")
    shares = [
        math.fsum(any(subset) for subset in itertools.combinations(group, k))
        / math.comb(SAMPLES, k)
        for group in groups
    ]
    mean, half = _mean_and_half(shares)
    assert metrics[f"eval/s/pass_at_{k}"] == pytest.approx(mean)
    assert metrics[f"eval/s/pass_at_{k}_low"] == pytest.approx(max(0.0, mean - half), abs=1e-12)


@given(st.lists(st.tuples(rewards, rewards), min_size=2, max_size=8))
def test_a_paired_difference_is_the_mean_of_prompt_differences(
    pairs: list[tuple[list[float], list[float]]],
) -> None:
    before, after = (list(side) for side in zip(*pairs, strict=True))
    mean, half = _mean_and_half([(sum(b) - sum(a)) / SAMPLES for a, b in pairs])
    difference, low, high = paired_difference(_table(before), _table(after), "s")
    assert difference == pytest.approx(mean, abs=1e-12)
    assert (low, high) == pytest.approx((mean - half, mean + half), abs=1e-12)
