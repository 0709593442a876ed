import numpy as np

from tests.builders import advantage_inputs
from tests.unit.components.advantages.built import estimate

NAN = float("nan")


def test_worked_example() -> None:
    # of the other three: .8 − 1.2/3, .3 − 1.7/3, .6 − 1.4/3, .3 − 1.7/3
    got = estimate("leave_one_out", advantage_inputs([0.8, 0.3, 0.6, 0.3]))
    np.testing.assert_allclose(got.advantages, [0.4, 0.3 - 1.7 / 3, 0.6 - 1.4 / 3, 0.3 - 1.7 / 3])


def test_only_siblings_with_a_reward_count() -> None:
    got = estimate("leave_one_out", advantage_inputs([1.0, NAN, 0.0, 0.5]))
    np.testing.assert_allclose(got.advantages, [0.75, 0.0, -0.75, 0.0])


def test_normalized_over_the_batch() -> None:
    # advantages 1 −1 and 3 −3: mean 0, squares sum to 20; population: sqrt(5), sample: sqrt(20/3)
    inputs = advantage_inputs([1.0, 0.0, 3.0, 0.0, 0.7], [0, 0, 1, 1, 2])
    got = estimate("leave_one_out", inputs, normalize=True, eps=0.0)
    np.testing.assert_allclose(got.advantages, np.array([1, -1, 3, -3, 0]) / np.sqrt(5))
    sample = estimate("leave_one_out", inputs, normalize=True, eps=0.5, std_ddof=1)
    np.testing.assert_allclose(sample.advantages[0], 1 / (np.sqrt(20 / 3) + 0.5))


def test_equal_groups_count_in_the_deviation_of_the_batch() -> None:
    # 1 −1 and 0 0: squares sum to 2 over 4
    inputs = advantage_inputs([1.0, 0.0, 3.0, 3.0], [0, 0, 1, 1])
    got = estimate("leave_one_out", inputs, normalize=True, eps=0.0)
    np.testing.assert_allclose(got.advantages, np.array([1, -1, 0, 0]) / np.sqrt(0.5))
