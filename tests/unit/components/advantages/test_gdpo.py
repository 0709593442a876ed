import numpy as np

from tests.builders import advantage_inputs
from tests.unit.components.advantages.built import estimate

NAN = float("nan")


def test_equal_totals_still_differ_if_their_parts_do() -> None:
    # z = (1, −1) and (−1, 1); s = z1 + 3 z2 = (−2, 2); the batch's deviation is 2
    inputs = advantage_inputs([30.0, 30.0], components=[[30, 0], [0, 10]], weights=[1.0, 3.0])
    got = estimate("gdpo", inputs, eps=0.0)
    np.testing.assert_allclose(got.advantages, [-1.0, 1.0])
    assert got.informative.all()
    np.testing.assert_allclose(got.group_std, 2.0)


def test_parts_that_cancel_are_nothing() -> None:
    parts = [
        [0.1, -0.3],
        [0.7, -2.1],
        [0.3, -0.9],
    ]  # z of the second is −z of the first up to rounding
    got = estimate("gdpo", advantage_inputs([0.0] * 3, components=parts), eps=0.0)
    np.testing.assert_array_equal(got.advantages, 0.0)


def test_a_weight_of_zero_silences_a_reward() -> None:
    inputs = advantage_inputs([1.0, 1.0], components=[[1, 5], [1, 7]], weights=[1.0, 0.0])
    got = estimate("gdpo", inputs)
    np.testing.assert_array_equal(got.advantages, 0.0)
    assert not got.informative.any()


def test_a_missing_part_counts_as_average() -> None:
    # reward 0: −1 1 –; reward 1: – – – (one value): s = −1 1 0, deviation sqrt(2/3)
    parts = [[0.0, NAN], [1.0, NAN], [NAN, 4.0]]
    got = estimate("gdpo", advantage_inputs([0.0, 1.0, 4.0], components=parts), eps=0.0)
    np.testing.assert_allclose(got.advantages, np.array([-1, 1, 0]) / np.sqrt(2 / 3))


def test_per_token_long_answers_count_more() -> None:
    # s = 1 (three tokens) and −1: mean ½, squared distances 3/4 + 9/4 over 3 = 1
    inputs = advantage_inputs([1.0, 0.0], loss_mask=[[1, 1, 1], [1]])
    got = estimate("gdpo", inputs, whiten="token", eps=0.0)
    np.testing.assert_allclose(got.advantages, np.array([0.5, -1.5]) / np.sqrt(1 + 1e-8))
