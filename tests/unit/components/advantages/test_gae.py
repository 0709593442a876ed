import numpy as np
import pytest

from rollbook.components.advantages.gae import Gae
from tests.builders import advantage_inputs
from tests.unit.components.advantages.built import estimate, tokens_of


def test_worked_by_hand() -> None:
    # V = ½ ¼, reward 1 on the last: δ = 0 + ½·¼ − ½ = −⅜ and 1 − ¼ = ¾; A = −⅜ + ¼·¾ = −3/16 and ¾
    inputs = advantage_inputs([1.0], loss_mask=[[1, 1]], values=[[0.5, 0.25]])
    estimator = Gae(gamma=0.5, lam=0.5, whiten=False)
    assert tokens_of(estimator(inputs)) == [[-3 / 16, 0.75]]
    assert list(estimator.returns(inputs).values) == [5 / 16, 1.0]


def test_masked_tokens_inside_are_skipped() -> None:
    garbage = float("nan")
    tool = advantage_inputs(
        [1.0], loss_mask=[[1, 0, 0, 1, 0]], values=[[0.5, garbage, 7.0, 0.25, garbage]]
    )
    estimator = Gae(gamma=0.5, lam=0.5, whiten=False)
    assert list(estimator.raw(tool).values) == [-3 / 16, 0.0, 0.0, 0.75, 0.0]
    assert list(estimator.returns(tool).values) == [5 / 16, 0.0, 0.0, 1.0, 0.0]


def test_with_lambda_one_it_is_the_return_less_the_value() -> None:
    inputs = advantage_inputs([1.0, 0.0], loss_mask=[[1, 1], [1]], values=[[0.5, 0.25], [0.125]])
    assert list(Gae().raw(inputs).values) == [0.5, 0.75, -0.125]
    raw = np.array([0.5, 0.75, -0.125])
    expected = (raw - raw.mean()) / np.sqrt(raw.var(ddof=1) + 1e-8)
    np.testing.assert_allclose(
        np.concatenate(tokens_of(estimate("gae", inputs))), expected, rtol=1e-12
    )


def test_without_a_reward_nothing_is_learned() -> None:
    inputs = advantage_inputs(
        [float("nan"), 1.0, 0.0], [0, 1, 2], loss_mask=[[1, 1], [1], [1]], values=[[3, 4], [0], [0]]
    )
    assert list(Gae().raw(inputs).values) == [0.0, 0.0, 1.0, 0.0]
    assert list(Gae().returns(inputs).values) == [3.0, 4.0, 1.0, 0.0]
    got = tokens_of(estimate("gae", inputs))
    assert got[0] == [0.0, 0.0]
    np.testing.assert_allclose([got[1], got[2]], [[np.sqrt(0.5)], [-np.sqrt(0.5)]], rtol=1e-7)
    returns = estimate("gae", inputs).returns
    assert returns is not None
    np.testing.assert_array_equal(returns.values, [np.nan, np.nan, 1.0, 0.0])


def test_returns_are_those_before_whitening() -> None:
    inputs = advantage_inputs(
        [1.0, 0.0], [0, 1], loss_mask=[[1, 0, 1], [1]], values=[[0.5, 9.0, 0.25], [0.125]]
    )
    returns = estimate("gae", inputs).returns
    assert returns is not None
    assert list(returns.values) == [1.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize("option", ["gamma", "lam"])
def test_discounts_are_shares(option: str) -> None:
    with pytest.raises(ValueError, match=option):
        Gae.model_validate({option: 1.5})
