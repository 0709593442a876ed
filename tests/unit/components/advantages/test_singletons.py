"""Answers without siblings: 0 as in TRL, or their raw reward as in verl."""

import numpy as np
import pytest

from tests.builders import advantage_inputs
from tests.unit.components.advantages.built import estimate

NAN = float("nan")
REWARDS = [1.0, 0.0, 0.7, NAN, NAN, 0.4]
GROUPS = [0, 0, 1, 2, 3, 3]
"""A pair, a single answer, one without a reward, and one whose sibling has no reward."""


@pytest.mark.parametrize("name", ["group", "leave_one_out", "gpg", "opo"])
def test_a_single_answer_gets_nothing_or_its_reward(name: str) -> None:
    inputs = advantage_inputs(REWARDS, GROUPS)
    zero = estimate(name, inputs)
    kept = estimate(name, inputs, singleton="reward")
    assert zero.advantages[2] == 0.0
    scale = {"group": 1 / (1 + 1e-4), "gpg": 4 / 3}.get(name, 1.0)
    assert kept.advantages[2] == pytest.approx(0.7 * scale)
    others = [0, 1, 3, 4, 5]
    np.testing.assert_array_equal(kept.advantages[others], zero.advantages[others])
    assert not zero.informative[2]


def test_under_whitening_it_counts_in_the_batch() -> None:
    inputs = advantage_inputs([1.0, 0.0, 0.7], [0, 0, 1])
    got = estimate("reinforce_plus_plus_baseline", inputs, singleton="reward").advantages
    centred = np.array([0.5, -0.5, 0.7])
    want = (centred - centred.mean()) / np.sqrt(centred.var(ddof=1) + 1e-8)
    np.testing.assert_allclose(got, want)
