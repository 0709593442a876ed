"""The laws of every advantage estimator that is found in `pipeline/rollbook/components/advantages`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rollbook.components.advantages.base import (
    AdvantageEstimator,
    AdvantageInputs,
    AdvantageOutputs,
)
from rollbook.core.errors import RollbookError
from rollbook.core.ragged import Ragged
from rollbook.core.registry import build, menu
from tests.builders import advantage_inputs

ESTIMATORS = menu("advantages")
NO_GROUP_BASELINE = {"reinforce_plus_plus", "remax", "gae"}
"""Baseline is the mean of the batch, the greedy answer, a value head: they do not compare with siblings."""
NOT_ZERO_SUM = NO_GROUP_BASELINE | {
    "reinforce_plus_plus_baseline",  # the mean over the batch's tokens is taken off
    "opo",  # it is the length-weighted sum that is 0
    "pass_at_k",  # only the best answer is not 0
    "process_supervision",  # tokens get sums of steps
    "best",  # nothing is pushed down
}
"""Estimators that do not claim that a group's advantages sum to 0."""
NOT_SHIFT_FREE = NO_GROUP_BASELINE | {
    "max_rl",  # divides by the mean
    "gpg",  # counts rewards that are 0
}
"""Estimators that do not claim to ignore a constant added to all rewards of a group."""
NO_PENALTY = {"gdpo", "process_supervision", "best", "pairs"}
"""Estimators that read parts of a reward, where no KL penalty is, or would choose by it."""
FIRST_OF_EQUALS = {"best", "pairs"}
"""Estimators that choose, and of equal rewards take the first: for them rows with distinct rewards are permuted."""

NAN = float("nan")
REWARDS = np.array([0.8, 2.0, 0.3, NAN, 0.6, -1.0, 0.3, 2.0, 2.0, NAN, 2.0, 0.5])
GROUPS = np.array([7, 1, 7, 7, 7, 1, 7, 4, 4, 4, 1, 9])
"""Group 7 has a row without a reward, group 1 is spread, group 4 has equal rewards, group 9 is a single row."""
MASKS = ("111", "1101", "1", "11", "011", "10110", "0", "11", "1111", "1", "11100", "1011")
"""Tokens inside completions and at their ends are masked; one completion has no trained-on token."""


def inputs_of(
    rewards: Sequence[float] | NDArray[np.float64],
    groups: Sequence[int] | NDArray[np.int64],
    masks: Sequence[str] | None = None,
) -> AdvantageInputs:
    """All that any estimator asks for. Steps, values and greedy rewards follow from the row alone, not its place."""
    masks = masks if masks is not None else ["11"] * len(rewards)
    return advantage_inputs(
        list(rewards),
        list(groups),
        loss_mask=[[int(token) for token in mask] for mask in masks],
        steps=[
            [(0, reward), (len(mask) - 1, reward)][: len(mask)]
            for reward, mask in zip(rewards, masks, strict=True)
        ],
        values=[[0.25 * place for place in range(len(mask))] for mask in masks],
        greedy_rewards=[0.5] * len(rewards),
    )


def rows_of(inputs: AdvantageInputs, order: NDArray[np.int64]) -> AdvantageInputs:
    """The same rollouts in another order, or fewer of them."""
    taken: dict[str, Any] = {}
    for field in fields(inputs):
        value = getattr(inputs, field.name)
        if isinstance(value, Ragged):
            taken[field.name] = value.rows(order)
        elif value is not None and field.name != "weights":
            taken[field.name] = value[order]
    return replace(inputs, **taken)


def estimate(name: str, inputs: AdvantageInputs) -> AdvantageOutputs:
    return built(name)(inputs)


def built(name: str) -> AdvantageEstimator:
    estimator = build("advantages", name)
    assert isinstance(estimator, AdvantageEstimator)
    return estimator


EVERYTHING = inputs_of(REWARDS, GROUPS, MASKS)
WITH_PENALTY = advantage_inputs(
    list(REWARDS),
    list(GROUPS),
    loss_mask=[[int(token) for token in mask] for mask in MASKS],
    values=[[0.25 * place for place in range(len(mask))] for mask in MASKS],
    penalties=[[0.1 * int(t) * (1 + p) for p, t in enumerate(mask)] for mask in MASKS],
    greedy_rewards=[0.5] * len(REWARDS),
)


def test_there_are_estimators() -> None:
    assert len(ESTIMATORS) >= 12
    assert set(ESTIMATORS) >= NOT_ZERO_SUM | NOT_SHIFT_FREE | NO_PENALTY


@pytest.mark.parametrize("name", ESTIMATORS)
def test_says_formula_and_source(name: str) -> None:
    text = inspect.getdoc(sys.modules[type(built(name)).__module__]) or ""
    assert "A_i" in text or "A[i,t]" in text
    assert "arXiv" in text or "TRL" in text or "verl" in text


@pytest.mark.parametrize("name", ESTIMATORS)
def test_says_what_differs_from_grpo(name: str) -> None:
    text = inspect.getdoc(sys.modules[type(built(name)).__module__]) or ""
    assert name == "group" or "Against GRPO" in text


@pytest.mark.parametrize("name", ESTIMATORS)
def test_shapes_and_no_nan(name: str) -> None:
    got = estimate(name, EVERYTHING)
    for column in (got.advantages, got.group_mean, got.group_std, got.informative):
        assert column.shape == REWARDS.shape
    assert np.isfinite(got.advantages).all()
    assert got.advantages.dtype == np.float64
    assert got.informative.dtype == np.bool_


@pytest.mark.parametrize("name", ESTIMATORS)
def test_token_advantages_have_the_layout_of_the_completion(name: str) -> None:
    inputs = WITH_PENALTY if name in ("remax", "reinforce_plus_plus", "gae") else EVERYTHING
    got = estimate(name, inputs)
    tokens = got.token_advantages
    if tokens is None:
        return
    np.testing.assert_array_equal(tokens.lengths, inputs.loss_mask.lengths)
    assert np.isfinite(tokens.values).all()
    np.testing.assert_array_equal(tokens.values[~inputs.loss_mask.values], 0.0)
    for row, (mask, values) in enumerate(
        zip(inputs.loss_mask.padded(False), tokens.padded(0.0), strict=True)
    ):
        mean = values[mask].mean() if mask.any() else 0.0
        np.testing.assert_allclose(got.advantages[row], mean, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_what_it_chooses_is_what_it_says_to_make(name: str) -> None:
    makes, got = built(name).makes, estimate(name, EVERYTHING)
    assert (got.pairs is not None) == (makes == "pairs")
    assert (got.kept is not None) == (makes != "advantages")
    if got.kept is not None:
        assert got.kept.any()
        assert not got.advantages[~got.kept].any()
        np.testing.assert_array_equal(
            got.informative, [got.kept[group == GROUPS].any() for group in GROUPS]
        )


@pytest.mark.parametrize("name", ESTIMATORS)
def test_better_than_the_siblings_is_positive(name: str) -> None:
    got = estimate(name, inputs_of([1.0, 0.0, 0.0, 0.0], [0] * 4)).advantages
    assert got[0] > 0
    assert (got[1:] <= 0).all()


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("inputs", [EVERYTHING, WITH_PENALTY], ids=["plain", "penalty"])
def test_permuting_rows_permutes_advantages(name: str, inputs: AdvantageInputs) -> None:
    if inputs is WITH_PENALTY and name in NO_PENALTY:
        return
    if name in FIRST_OF_EQUALS:
        inputs = replace(inputs, rewards=REWARDS + np.arange(len(REWARDS)) / 64)
    straight = estimate(name, inputs)
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(len(REWARDS))
        mixed = estimate(name, rows_of(inputs, order))
        for column in ("advantages", "group_mean", "group_std", "informative"):
            np.testing.assert_array_equal(getattr(mixed, column), getattr(straight, column)[order])
        if straight.token_advantages is not None:
            assert mixed.token_advantages is not None
            np.testing.assert_array_equal(
                mixed.token_advantages.values, straight.token_advantages.rows(order).values
            )


@pytest.mark.parametrize("name", ESTIMATORS)
def test_labels_are_only_names(name: str) -> None:
    renamed = np.select([GROUPS == 7, GROUPS == 1, GROUPS == 4], [-5, 10**12, 0], 3)
    np.testing.assert_array_equal(
        estimate(name, inputs_of(REWARDS, renamed, MASKS)).advantages,
        estimate(name, EVERYTHING).advantages,
    )


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name not in NOT_SHIFT_FREE])
def test_a_constant_added_to_a_group_changes_nothing(name: str) -> None:
    straight = estimate(name, EVERYTHING)
    moved = estimate(name, inputs_of(REWARDS + np.where(GROUPS == 7, 3.0, 0.0), GROUPS, MASKS))
    np.testing.assert_allclose(moved.advantages, straight.advantages, rtol=1e-9, atol=1e-12)
    assert moved.group_mean[0] == pytest.approx(straight.group_mean[0] + 3.0)


@pytest.mark.parametrize("name", sorted(NOT_SHIFT_FREE))
def test_the_exceptions_do_feel_a_constant(name: str) -> None:
    straight = estimate(name, inputs_of([0.0, 1.0, 0.5, 0.25], [0, 0, 1, 1])).advantages
    moved = estimate(name, inputs_of([3.0, 4.0, 0.5, 0.25], [0, 0, 1, 1])).advantages
    assert not np.allclose(moved, straight)


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name not in NOT_ZERO_SUM])
def test_a_groups_advantages_sum_to_zero(name: str) -> None:
    got = estimate(name, EVERYTHING).advantages
    sums = [got[group == GROUPS].sum() for group in np.unique(GROUPS)]
    np.testing.assert_allclose(sums, 0.0, atol=1e-12)


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, -1e6, 1e-300])
def test_equal_rewards_are_exactly_zero(name: str, value: float) -> None:
    inputs = replace(
        inputs_of([value] * 8, [0] * 8), greedy_rewards=np.full(8, value), values=_zeros(8)
    )
    got = estimate(name, inputs)
    np.testing.assert_array_equal(got.advantages, 0.0)
    assert not got.informative.any()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_equal_up_to_rounding_is_equal(name: str) -> None:
    noisy = [0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1, 0.6, 0.6]
    assert len(set(noisy)) > 1
    inputs = replace(inputs_of(noisy, [0] * 4), greedy_rewards=np.full(4, 0.6), values=_zeros(4))
    got = estimate(name, inputs)
    np.testing.assert_array_equal(got.advantages, 0.0)
    assert not got.informative.any()


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name not in NO_GROUP_BASELINE])
def test_an_answer_without_scorable_siblings_gets_nothing(name: str) -> None:
    # groups 1 and 2 have one reward each; group 0 shows that the batch is not silent
    got = estimate(name, inputs_of([1.0, 0.0, 5.0, 3.0, NAN], [0, 0, 1, 2, 2]))
    np.testing.assert_array_equal(got.advantages[2:], 0.0)
    assert got.advantages[0] > 0
    assert not got.informative[2:].any()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_rows_without_a_reward_are_left_out(name: str) -> None:
    known = np.flatnonzero(~np.isnan(REWARDS))
    got = estimate(name, EVERYTHING)
    without = estimate(name, rows_of(EVERYTHING, known))
    np.testing.assert_array_equal(got.advantages[known], without.advantages)
    np.testing.assert_array_equal(got.advantages[np.isnan(REWARDS)], 0.0)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_nothing_known_is_all_zero(name: str) -> None:
    got = estimate(name, inputs_of([NAN] * 4, [0, 0, 1, 1]))
    np.testing.assert_array_equal(got.advantages, 0.0)
    assert not got.informative.any()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_no_rows_no_advantages(name: str) -> None:
    assert estimate(name, rows_of(EVERYTHING, np.empty(0, np.int64))).advantages.shape == (0,)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_no_trained_tokens_no_failure(name: str) -> None:
    got = estimate(name, inputs_of([1.0, 0.0, 0.5], [0, 0, 0], ["00", "", "0"]))
    assert np.isfinite(got.advantages).all()
    if got.token_advantages is not None:
        np.testing.assert_array_equal(got.token_advantages.values, 0.0)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_masked_values_do_not_matter(name: str) -> None:
    assert EVERYTHING.values is not None
    garbage = np.where(EVERYTHING.loss_mask.values, EVERYTHING.values.values, NAN)
    spoilt = replace(EVERYTHING, values=Ragged(garbage, EVERYTHING.values.lengths))
    np.testing.assert_array_equal(
        estimate(name, spoilt).advantages, estimate(name, EVERYTHING).advantages
    )


@pytest.mark.parametrize("name", ESTIMATORS)
def test_inputs_are_not_changed(name: str) -> None:
    inputs = inputs_of(REWARDS, GROUPS, MASKS)
    estimate(name, inputs)
    for field in ("rewards", "groups", "components", "weights", "greedy_rewards"):
        np.testing.assert_array_equal(getattr(inputs, field), getattr(EVERYTHING, field))
    for field in ("loss_mask", "values", "step_ends", "step_rewards"):
        np.testing.assert_array_equal(
            getattr(inputs, field).values, getattr(EVERYTHING, field).values
        )


@pytest.mark.parametrize("name", ESTIMATORS)
def test_what_it_says_to_need_is_what_it_needs(name: str) -> None:
    estimator = built(name)
    needs = {
        "greedy_rewards": estimator.needs_greedy,
        "step_rewards": estimator.needs_steps,
        "values": estimator.needs_values,
    }
    for field, needed in needs.items():
        nothing: dict[str, Any] = {field: None}
        without = replace(EVERYTHING, **nothing)
        if needed:
            with pytest.raises(RollbookError, match=f"{name} needs"):
                estimator(without)
        else:
            estimator(without)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_penalty_is_felt_or_refused(name: str) -> None:
    if name in NO_PENALTY:
        with pytest.raises(RollbookError, match="kl_coef"):
            estimate(name, WITH_PENALTY)
        return
    plain = replace(WITH_PENALTY, rewards=REWARDS, token_penalties=None)
    penalised, free = estimate(name, WITH_PENALTY), estimate(name, plain)
    assert np.isfinite(penalised.advantages).all()
    assert not np.allclose(penalised.advantages, free.advantages)


def _zeros(rows: int) -> Ragged:
    return Ragged.of([[0.0, 0.0]] * rows)
