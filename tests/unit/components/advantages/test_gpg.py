import numpy as np

from tests.builders import advantage_inputs
from tests.unit.components.advantages.built import estimate

NAN = float("nan")


def test_scaled_by_the_share_of_rewards_that_are_not_zero() -> None:
    # 5 rewards, 2 of them not 0
    inputs = advantage_inputs([1.0, 0.0, NAN, 0.0, 0.0, -2.0], [0, 0, 0, 1, 1, 2])
    np.testing.assert_allclose(estimate("gpg", inputs).advantages, [1.25, -1.25, 0, 0, 0, 0])


def test_all_zero_is_zero() -> None:
    np.testing.assert_array_equal(estimate("gpg", advantage_inputs([0.0, 0.0])).advantages, 0.0)
