"""`group` against loops written from the formula, one row at a time, in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rollbook.components.advantages.base import AdvantageOutputs
from rollbook.components.advantages.group import Group
from tests.builders import advantage_inputs

EPS = 1e-4
# Rewards on a grid of 1/64: sums are exact, so that "equal" has one meaning and ties are frequent.
REWARD = st.one_of(
    st.none(), st.integers(-256, 256).map(lambda n: n / 64), st.sampled_from([0.0, 1.0])
)
ROWS = st.lists(st.tuples(REWARD, st.integers(-2, 3)), min_size=1, max_size=24)
OPTIONS = st.fixed_dictionaries(
    {"scale": st.sampled_from(["group", "batch", "none"]), "std_ddof": st.sampled_from([0, 1])}
)


def estimate(rows: list[tuple[float | None, int]], options: dict[str, Any]) -> AdvantageOutputs:
    rewards = [math.nan if reward is None else reward for reward, _ in rows]
    return Group(eps=EPS, **options)(advantage_inputs(rewards, [group for _, group in rows]))


def deviation(values: list[float], ddof: int) -> float:
    if len(values) < 2:
        return math.nan
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - ddof))


def naive(rows: list[tuple[float | None, int]], scale: str, std_ddof: int) -> list[float]:
    everything = [reward for reward, _ in rows if reward is not None]
    advantages = []
    for reward, group in rows:
        siblings = [other for other, label in rows if label == group and other is not None]
        if reward is None or len(siblings) < 2 or min(siblings) == max(siblings):
            advantages.append(0.0)
            continue
        centred = reward - math.fsum(siblings) / len(siblings)
        if scale == "none":
            advantages.append(centred)
        else:
            sigma = deviation(siblings if scale == "group" else everything, std_ddof)
            advantages.append(centred / (sigma + EPS))
    return advantages


@given(ROWS, OPTIONS)
@example([(0.75, 0), (0.25, 0), (None, 0), (0.5, 1)], {"scale": "group", "std_ddof": 1})
@settings(deadline=None)
def test_equals_the_formula(rows: list[tuple[float | None, int]], options: dict[str, Any]) -> None:
    got = estimate(rows, options).advantages
    np.testing.assert_allclose(got, naive(rows, **options), rtol=1e-12, atol=1e-13)


@given(ROWS, OPTIONS, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_the_order_of_rows_changes_no_digit(
    rows: list[tuple[float | None, int]], options: dict[str, Any], random: Any
) -> None:
    order = list(range(len(rows)))
    random.shuffle(order)
    straight, mixed = estimate(rows, options), estimate([rows[place] for place in order], options)
    for name in ("advantages", "group_mean", "group_std", "informative"):
        np.testing.assert_array_equal(getattr(mixed, name), getattr(straight, name)[order])


@given(
    st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=16),
    st.sampled_from([0, 1]),
)
@settings(deadline=None)
def test_bounds_of_the_group_deviation(rewards: list[float], ddof: int) -> None:
    """|A| is at most sqrt(G−1) with the population deviation, (G−1)/sqrt(G) with the sample deviation."""
    size = len(rewards)
    got = estimate([(reward, 0) for reward in rewards], {"scale": "group", "std_ddof": ddof})
    bound = math.sqrt(size - 1) if ddof == 0 else (size - 1) / math.sqrt(size)
    assert np.abs(got.advantages).max() <= bound * (1 + 1e-12)


@pytest.mark.parametrize("size", [2, 4, 16])
def test_population_and_sample_differ_by_a_constant(size: int) -> None:
    values = np.arange(size, dtype=np.float64) ** 2
    inputs = advantage_inputs(list(values))
    population = Group(eps=0.0)(inputs).advantages
    sample = Group(eps=0.0, std_ddof=1)(inputs).advantages
    np.testing.assert_allclose(population, sample * math.sqrt(size / (size - 1)), rtol=1e-12)
