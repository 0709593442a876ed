import numpy as np

from tests.builders import advantage_inputs
from tests.unit.components.advantages.built import estimate


def test_the_baseline_is_the_mean_reward_of_the_tokens() -> None:
    # (3·1 + 1·0) / 4 = ¾; masked tokens do not count
    inputs = advantage_inputs([1.0, 0.0], loss_mask=[[1, 1, 0, 1], [0, 1, 0, 0]])
    got = estimate("opo", inputs)
    np.testing.assert_allclose(got.advantages, [0.25, -0.75])
    np.testing.assert_allclose(got.group_mean, 0.5)


def test_rows_without_a_reward_lend_no_tokens() -> None:
    inputs = advantage_inputs([1.0, float("nan"), 0.0], loss_mask=[[1], [1] * 9, [1]])
    np.testing.assert_allclose(estimate("opo", inputs).advantages, [0.5, 0.0, -0.5])


def test_a_group_without_tokens_gets_nothing() -> None:
    got = estimate("opo", advantage_inputs([1.0, 0.0], loss_mask=[[0, 0], []]))
    np.testing.assert_array_equal(got.advantages, 0.0)
