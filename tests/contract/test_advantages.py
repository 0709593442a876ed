"""The laws of every advantage estimator that is found in `pipeline/advantages`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.advantages.base import AdvantageEstimator, AdvantageInputs, AdvantageOutputs
from pipeline.registry import build, menu

ESTIMATORS = menu("advantages")
NOT_ZERO_SUM: set[str] = set()
"""Estimators that do not claim that a group's advantages sum to 0."""
NOT_SHIFT_FREE: set[str] = set()
"""Estimators that do not claim to ignore a constant added to all rewards of a group."""

NAN = float("nan")
REWARDS = np.array([0.8, 2.0, 0.3, NAN, 0.6, -1.0, 0.3, 2.0, 2.0, NAN, 2.0, 0.5])
GROUPS = np.array([7, 1, 7, 7, 7, 1, 7, 4, 4, 4, 1, 9])
"""Group 7 has a row without a reward, group 1 is spread, group 4 has equal rewards, group 9 is a single row."""


def estimate(
    name: str, rewards: Sequence[float] | NDArray[np.float64], groups: NDArray[np.int64]
) -> AdvantageOutputs:
    values = np.array(rewards, dtype=np.float64)
    inputs = AdvantageInputs(
        rewards=values,
        groups=groups,
        components=values[:, None],
        weights=np.ones(1),
        lengths=1 + np.argsort(np.argsort(values)),  # depends on the row, not on its place
    )
    return built(name)(inputs)


def built(name: str) -> AdvantageEstimator:
    estimator = build("advantages", name)
    assert isinstance(estimator, AdvantageEstimator)
    return estimator


def test_there_are_estimators() -> None:
    assert "group" in ESTIMATORS


@pytest.mark.parametrize("name", ESTIMATORS)
def test_says_formula_and_source(name: str) -> None:
    text = inspect.getdoc(sys.modules[type(built(name)).__module__]) or ""
    assert "A_i" in text or "A[i,t]" in text
    assert "arXiv" in text or "TRL" in text or "verl" in text


@pytest.mark.parametrize("name", ESTIMATORS)
def test_shapes_and_no_nan(name: str) -> None:
    got = estimate(name, REWARDS, GROUPS)
    for column in (got.advantages, got.group_mean, got.group_std, got.informative):
        assert column.shape == REWARDS.shape
    assert np.isfinite(got.advantages).all()
    assert got.advantages.dtype == np.float64
    assert got.informative.dtype == np.bool_


@pytest.mark.parametrize("name", ESTIMATORS)
def test_better_than_the_siblings_is_positive(name: str) -> None:
    got = estimate(name, [1.0, 0.0, 0.0, 0.0], np.zeros(4, dtype=np.int64)).advantages
    assert got[0] > 0
    assert (got[1:] <= 0).all()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_permuting_rows_permutes_advantages(name: str) -> None:
    straight = estimate(name, REWARDS, GROUPS)
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(len(REWARDS))
        mixed = estimate(name, REWARDS[order], GROUPS[order])
        np.testing.assert_array_equal(mixed.advantages, straight.advantages[order])
        np.testing.assert_array_equal(mixed.group_mean, straight.group_mean[order])
        np.testing.assert_array_equal(mixed.informative, straight.informative[order])


@pytest.mark.parametrize("name", ESTIMATORS)
def test_labels_are_only_names(name: str) -> None:
    renamed = np.select([GROUPS == 7, GROUPS == 1, GROUPS == 4], [-5, 10**12, 0], 3)
    np.testing.assert_array_equal(
        estimate(name, REWARDS, renamed).advantages, estimate(name, REWARDS, GROUPS).advantages
    )


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name not in NOT_SHIFT_FREE])
def test_a_constant_added_to_a_group_changes_nothing(name: str) -> None:
    straight = estimate(name, REWARDS, GROUPS)
    moved = estimate(name, REWARDS + np.where(GROUPS == 7, 3.0, 0.0), GROUPS)
    np.testing.assert_allclose(moved.advantages, straight.advantages, rtol=1e-9, atol=1e-12)
    assert moved.group_mean[0] == pytest.approx(straight.group_mean[0] + 3.0)


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name not in NOT_ZERO_SUM])
def test_a_groups_advantages_sum_to_zero(name: str) -> None:
    got = estimate(name, REWARDS, GROUPS).advantages
    sums = [got[group == GROUPS].sum() for group in np.unique(GROUPS)]
    np.testing.assert_allclose(sums, 0.0, atol=1e-12)


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, -1e6, 1e-300])
def test_equal_rewards_are_exactly_zero(name: str, value: float) -> None:
    got = estimate(name, [value] * 8, np.zeros(8, dtype=np.int64))
    np.testing.assert_array_equal(got.advantages, 0.0)
    assert not got.informative.any()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_rows_without_a_reward_are_left_out(name: str) -> None:
    known = ~np.isnan(REWARDS)
    got = estimate(name, REWARDS, GROUPS)
    without = estimate(name, REWARDS[known], GROUPS[known])
    np.testing.assert_array_equal(got.advantages[known], without.advantages)
    np.testing.assert_array_equal(got.advantages[~known], 0.0)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_nothing_known_is_all_zero(name: str) -> None:
    got = estimate(name, [NAN] * 4, np.array([0, 0, 1, 1]))
    np.testing.assert_array_equal(got.advantages, 0.0)
    assert not got.informative.any()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_inputs_are_not_changed(name: str) -> None:
    rewards, groups = REWARDS.copy(), GROUPS.copy()
    estimate(name, rewards, groups)
    np.testing.assert_array_equal(rewards, REWARDS)
    np.testing.assert_array_equal(groups, GROUPS)
