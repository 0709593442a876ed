import numpy as np
import pytest
import torch

from rollbook.components.advantages.kl_reward import (
    LOG_RATIO_LIMIT,
    RewardKl,
    penalized,
    row_mean,
    token_kl,
    token_mean,
    token_penalties,
)
from rollbook.components.losses import ratio
from rollbook.components.losses.kl import kl_estimate
from rollbook.core.ragged import Ragged

NAN = float("nan")
OLD = Ragged.of([[-1.0, -2.0, NAN], [-0.5], []])
REF = Ragged.of([[-1.5, -1.0, -3.0], [-0.5], []])
MASK = Ragged.of([[1, 1, 0], [1], []], bool)
ESTIMATORS: list[RewardKl] = ["k1", "k2", "k3", "abs"]


def test_k1_by_hand() -> None:
    # old − ref: ½, −1, masked; 0
    kl = token_kl(OLD, REF, MASK, "k1")
    np.testing.assert_array_equal(kl.values, [0.5, -1.0, 0.0, 0.0])
    penalties = token_penalties(OLD, REF, MASK, 0.5, "k1")
    np.testing.assert_array_equal(penalties.values, [0.25, -0.5, 0.0, 0.0])
    np.testing.assert_array_equal(penalized(np.array([1.0, 2.0, NAN]), penalties), [1.25, 2.0, NAN])
    assert token_mean(kl, MASK) == -0.5 / 3
    assert row_mean(kl, MASK) == (-0.25 + 0 + 0) / 3


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_estimates_are_those_of_the_losses(estimator: RewardKl) -> None:
    old = np.array([-1.0, -2.5, -0.1, -30.0, -0.5])
    ref = np.array([-1.5, -0.5, -0.1, -0.5, -40.0])
    mask = Ragged.of([[1] * 5], bool)
    got = token_kl(Ragged.of([old]), Ragged.of([ref]), mask, estimator).values
    expected = kl_estimate(estimator, torch.from_numpy(old), torch.from_numpy(ref))
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-12, atol=1e-15)


def test_the_limit_is_that_of_the_losses() -> None:
    # components do not import each other, so the number stands in both
    assert LOG_RATIO_LIMIT == ratio.LOG_RATIO_LIMIT


def test_no_rows() -> None:
    empty = Ragged.of([])
    kl = token_kl(empty, empty, Ragged.of([], bool), "k3")
    assert token_mean(kl, Ragged.of([], bool)) == 0.0
    assert row_mean(kl, Ragged.of([], bool)) == 0.0
