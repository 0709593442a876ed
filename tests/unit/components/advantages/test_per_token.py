import numpy as np

from rollbook.components.advantages.per_token import discounted_sums, next_trained, whitened
from rollbook.core.ragged import Ragged

VALUES = Ragged.of([[1.0, 2.0, 4.0], [], [8.0], [16.0, 32.0]])
MASK = Ragged.of([[1, 0, 1], [], [1], [0, 0]], bool)


def test_discounted_sums_skip_what_is_masked() -> None:
    got = discounted_sums(VALUES, MASK, 0.5)
    np.testing.assert_array_equal(got.values, [3.0, 0.0, 4.0, 8.0, 0.0, 0.0])
    np.testing.assert_array_equal(got.lengths, VALUES.lengths)


def test_the_next_trained_token_is_of_the_same_row() -> None:
    np.testing.assert_array_equal(next_trained(VALUES, MASK).values, [4.0, 0, 0, 0, 0, 0])


def test_whitened_over_the_chosen_rows() -> None:
    # 1 and 4: mean 2.5, sample variance 4.5
    rows = np.array([True, True, False, True])
    got = whitened(VALUES, MASK, rows).values
    expected = 1.5 / np.sqrt(4.5 + 1e-8)
    np.testing.assert_allclose(got, [-expected, 0, expected, 0, 0, 0], rtol=1e-12)
