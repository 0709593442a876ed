import numpy as np

from tests.builders import advantage_inputs
from tests.unit.components.advantages.built import estimate

NAN = float("nan")


def test_only_the_best_answer_learns() -> None:
    # deviation sqrt(.045), lead .2
    got = estimate("pass_at_k", advantage_inputs([0.8, 0.3, 0.6, 0.3]))
    np.testing.assert_allclose(got.advantages, [0.2 / (np.sqrt(0.045) + 1e-4), 0, 0, 0])
    plain = estimate("pass_at_k", advantage_inputs([0.8, 0.3, 0.6, 0.3]), scale="none")
    np.testing.assert_allclose(plain.advantages, [0.2, 0, 0, 0])
    sample = estimate("pass_at_k", advantage_inputs([0.8, 0.3, 0.6, 0.3]), std_ddof=1, eps=0.0)
    np.testing.assert_allclose(sample.advantages, [0.2 / np.sqrt(0.06), 0, 0, 0])


def test_two_best_answers_have_no_lead() -> None:
    got = estimate("pass_at_k", advantage_inputs([1.0, 0.0, 1.0]))
    np.testing.assert_array_equal(got.advantages, 0.0)
    assert got.informative.all()


def test_groups_stand_anywhere_and_missing_rewards_are_no_best() -> None:
    inputs = advantage_inputs([0.0, NAN, 3.0, 1.0, NAN, 5.0], [2, 2, -1, 2, -1, -1])
    got = estimate("pass_at_k", inputs, scale="none")
    np.testing.assert_array_equal(got.advantages, [0.0, 0.0, 0.0, 1.0, 0.0, 2.0])
