import numpy as np

from tests.builders import advantage_inputs
from tests.unit.components.advantages.built import estimate


def test_long_answers_count_more() -> None:
    # centred ½ (three times) and −½: mean ¼, squared distances 3/16 + 9/16 over 3 = ¼
    inputs = advantage_inputs([1.0, 0.0], loss_mask=[[1, 1, 1], [1, 0, 0]])
    got = estimate("reinforce_plus_plus_baseline", inputs)
    np.testing.assert_allclose(got.advantages, np.array([0.25, -0.75]) / np.sqrt(0.25 + 1e-8))
    assert got.token_advantages is None


def test_a_flat_group_is_moved_off_zero_a_single_answer_is_not() -> None:
    # centred ½ ½ −½ and 0 0: mean 1/10, squared distances 3/4 − 5/100 over 4
    masks = [[1, 1], [1], [1], [1], [1]]
    inputs = advantage_inputs([1.0, 0.0, 2.0, 2.0, 7.0], [0, 0, 1, 1, 2], loss_mask=masks)
    got = estimate("reinforce_plus_plus_baseline", inputs)
    np.testing.assert_allclose(got.advantages[2:4], -0.1 / np.sqrt(0.7 / 4 + 1e-8))
    assert got.advantages[4] == 0.0
    assert list(got.informative) == [True, True, False, False, False]
