import numpy as np
import pytest

from tests.builders import advantage_inputs
from tests.unit.components.advantages.built import estimate


def test_divided_by_the_pass_rate() -> None:
    # once in four: (1 − ¼)/¼ = 3 and −1
    got = estimate("max_rl", advantage_inputs([1.0, 0.0, 0.0, 0.0]), eps=0.0)
    np.testing.assert_allclose(got.advantages, [3.0, -1.0, -1.0, -1.0])
    softer = estimate("max_rl", advantage_inputs([1.0, 0.0, 0.0, 0.0]), eps=0.25)
    np.testing.assert_allclose(softer.advantages, [1.5, -0.5, -0.5, -0.5])


@pytest.mark.parametrize("rewards", [[-1.0, 0.0], [-1.0, 1.0], [-0.3, 0.1, 0.2], [-2.0, 1.0]])
def test_a_mean_not_above_zero_is_no_success(rewards: list[float]) -> None:
    got = estimate("max_rl", advantage_inputs(rewards), eps=0.0)
    np.testing.assert_array_equal(got.advantages, 0.0)
    assert got.informative.all()


def test_negative_members_of_a_group_with_success_are_pushed_down() -> None:
    # mean ½: (2 − ½)/½ and (−1 − ½)/½
    got = estimate("max_rl", advantage_inputs([2.0, -1.0]), eps=0.0)
    np.testing.assert_allclose(got.advantages, [3.0, -3.0])
