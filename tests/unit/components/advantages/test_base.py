import numpy as np

from tests.builders import advantage_inputs

NAN = float("nan")
MASK = [[1, 1, 0], [0, 0], [], [1, 0, 1]]


def test_the_reward_stands_on_the_last_trained_token() -> None:
    inputs = advantage_inputs([3.0, 5.0, 7.0, NAN], loss_mask=MASK)
    np.testing.assert_array_equal(inputs.lengths, [2, 0, 0, 2])
    np.testing.assert_array_equal(inputs.token_rewards.values, [0, 3, 0, 0, 0, 0, 0, 0])


def test_less_the_penalty_of_each_token() -> None:
    penalties = [[0.5, 0.25, 0.0], [0.0, 0.0], [], [0.5, 0.0, 0.5]]
    inputs = advantage_inputs([3.0, 5.0, 7.0, NAN], loss_mask=MASK, penalties=penalties)
    np.testing.assert_array_equal(inputs.rewards, [2.25, 5.0, 7.0, NAN])
    np.testing.assert_array_equal(inputs.token_rewards.values, [-0.5, 2.75, 0, 0, 0, 0, 0, 0])
