import numpy as np
import pytest

from rollbook.core.errors import ArtifactError
from tests.builders import advantage_inputs
from tests.unit.components.advantages.built import estimate, tokens_of

NAN = float("nan")


def test_rewards_less_that_of_the_greedy_answer() -> None:
    inputs = advantage_inputs(
        [1.0, 0.0, 1.0, 0.3, NAN], [0, 0, 1, 2, 2], greedy_rewards=[0.5, 0.5, 1.0, NAN, 0.0]
    )
    got = estimate("remax", inputs)
    np.testing.assert_array_equal(got.advantages, [0.5, -0.5, 0.0, 0.0, 0.0])
    assert got.token_advantages is None


def test_solved_by_all_but_the_greedy_answer_is_signal() -> None:
    got = estimate("remax", advantage_inputs([1.0, 1.0], greedy_rewards=[0.0, 0.0]))
    np.testing.assert_array_equal(got.advantages, 1.0)


def test_with_a_penalty_tokens_differ() -> None:
    # token rewards −1 0 3 (masked: 0): rewards-to-go 2, –, 3
    inputs = advantage_inputs(
        [3.0], loss_mask=[[1, 0, 1]], penalties=[[1.0, 0.0, 0.0]], greedy_rewards=[0.5]
    )
    got = estimate("remax", inputs)
    assert tokens_of(got) == [[1.5, 0.0, 2.5]]
    np.testing.assert_array_equal(got.advantages, 2.0)


def test_says_how_to_get_greedy_answers() -> None:
    with pytest.raises(ArtifactError, match=r"generate_rollouts\.greedy"):
        estimate("remax", advantage_inputs([1.0]))
