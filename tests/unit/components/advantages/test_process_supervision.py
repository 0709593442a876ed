from typing import Any

import numpy as np
import pytest

from rollbook.core.errors import ArtifactError
from tests.builders import advantage_inputs
from tests.unit.components.advantages.built import estimate, tokens_of

NAN = float("nan")


def test_worked_by_hand() -> None:
    # step rewards (1, 0) and (0, 1): mean ½, deviation ½, z = (1, −1) and (−1, 1); sums from the end: 0 −1 and 0 1
    steps = [[(1, 1.0), (2, 0.0)], [(0, 0.0), (2, 1.0)]]
    inputs = advantage_inputs([1.0, 1.0], loss_mask=[[1, 1, 1, 1], [1, 1, 1]], steps=steps)
    got = estimate("process_supervision", inputs)
    assert tokens_of(got) == [[0.0, 0.0, -1.0, 0.0], [0.0, 1.0, 1.0]]
    np.testing.assert_allclose(got.advantages, [-0.25, 2 / 3])
    assert got.informative.all()


def test_one_step_that_ends_with_the_answer_is_outcome_supervision() -> None:
    rewards = [0.8, 0.3, 0.6, 0.3]
    inputs = advantage_inputs(
        rewards, loss_mask=[[1, 1]] * 4, steps=[[(1, reward)] for reward in rewards]
    )
    got = estimate("process_supervision", inputs).advantages
    np.testing.assert_allclose(got, estimate("group", inputs, eps=0.0).advantages, rtol=1e-12)


def test_masked_tokens_get_nothing_and_may_end_a_step() -> None:
    # z = 1 and −1; the tool's token that ends step 1 is masked
    inputs = advantage_inputs(
        [0.0, 0.0], loss_mask=[[1, 0, 1], [1, 1, 1]], steps=[[(1, 1.0)], [(1, 0.0)]]
    )
    got = tokens_of(estimate("process_supervision", inputs))
    assert got == [[1.0, 0.0, 0.0], [-1.0, -1.0, 0.0]]


def test_missing_rewards_are_left_out_of_the_pool() -> None:
    steps = [[(0, 1.0), (1, NAN)], [(1, 0.0)], [(0, 9.0)], []]
    inputs = advantage_inputs([0.0, 0.0, NAN, 0.0], loss_mask=[[1, 1]] * 4, steps=steps)
    got = estimate("process_supervision", inputs)
    assert tokens_of(got) == [[1.0, 0.0], [-1.0, -1.0], [0.0, 0.0], [0.0, 0.0]]
    assert got.informative.all()  # all four belong to the group
    np.testing.assert_array_equal(got.group_std, 0.5)


@pytest.mark.parametrize(
    ("options", "std"),
    [({"std_ddof": 1}, np.sqrt(0.5)), ({"eps": 0.5}, 1.0), ({"std_floor": 2.0}, 2.0)],
)
def test_deviation_and_its_floor(options: dict[str, Any], std: float) -> None:
    inputs = advantage_inputs([0.0, 0.0], steps=[[(0, 1.0)], [(0, 0.0)]])
    got = estimate("process_supervision", inputs, **options)
    np.testing.assert_allclose(got.advantages, np.array([0.5, -0.5]) / std)


@pytest.mark.parametrize("end", [-1, 2])
def test_a_step_must_end_in_its_completion(end: int) -> None:
    inputs = advantage_inputs([0.0], loss_mask=[[1, 1]], steps=[[(end, 1.0)]])
    with pytest.raises(ArtifactError, match=f"step of rollout 0 ends at token {end}"):
        estimate("process_supervision", inputs)
