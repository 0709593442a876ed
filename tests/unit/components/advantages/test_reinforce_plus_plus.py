import numpy as np

from tests.builders import advantage_inputs
from tests.unit.components.advantages.built import estimate, tokens_of


def test_rewards_to_go_are_whitened_over_tokens() -> None:
    # returns ¼ ½ 1 and 0: mean 7/16, squared distances sum to 1/16 + ¼ + 1 − 4·(7/16)² = 0.546875; over 3
    inputs = advantage_inputs([1.0, 0.0], [0, 1], loss_mask=[[1, 1, 1], [1]])
    got = estimate("reinforce_plus_plus", inputs, gamma=0.5)
    returns = np.array([0.25, 0.5, 1.0, 0.0])
    expected = (returns - 7 / 16) / np.sqrt(0.546875 / 3 + 1e-8)
    np.testing.assert_allclose(np.concatenate(tokens_of(got)), expected, rtol=1e-12)
    np.testing.assert_allclose(got.advantages, [expected[:3].mean(), expected[3]], rtol=1e-12)


def test_masked_tokens_inside_are_skipped() -> None:
    tool = advantage_inputs([1.0, 0.0], [0, 1], loss_mask=[[1, 0, 0, 1, 1, 0], [1]])
    plain = advantage_inputs([1.0, 0.0], [0, 1], loss_mask=[[1, 1, 1], [1]])
    got = tokens_of(estimate("reinforce_plus_plus", tool, gamma=0.5))
    expected = tokens_of(estimate("reinforce_plus_plus", plain, gamma=0.5))
    np.testing.assert_array_equal(np.array(got[0])[[0, 3, 4]], expected[0])
    np.testing.assert_array_equal(np.array(got[0])[[1, 2, 5]], 0.0)


def test_the_penalty_of_a_token_reaches_it_and_those_before() -> None:
    # token rewards −1 and 3 − 0: returns 2 3; the other row 0 0
    inputs = advantage_inputs(
        [3.0, 0.0], [0, 0], loss_mask=[[1, 1], [1, 1]], penalties=[[1.0, 0.0], [0.0, 0.0]]
    )
    got = tokens_of(estimate("reinforce_plus_plus", inputs))
    scale = np.sqrt((4 + 9 - 4 * 1.25**2) / 3 + 1e-8)
    np.testing.assert_allclose(got, (np.array([[2, 3], [0, 0]]) - 1.25) / scale, rtol=1e-12)


def test_one_answer_per_prompt_is_enough() -> None:
    got = estimate("reinforce_plus_plus", advantage_inputs([1.0, 0.0], [0, 1]))
    np.testing.assert_allclose(got.advantages, np.array([0.5, -0.5]) / np.sqrt(0.5 + 1e-8))
    assert got.informative.all()
