import numpy as np

from rollbook.components.advantages.moments import (
    group_sums,
    moments_of,
    normalizing,
    std_of,
    whitening,
)

NAN = float("nan")


def test_counts_and_sums_leave_missing_values_out() -> None:
    values, groups = np.array([1.0, NAN, 2.0, NAN]), np.array([5, 5, 5, -1])
    np.testing.assert_array_equal(moments_of(values, groups, 0).count, [2, 2, 2, 0])
    np.testing.assert_array_equal(group_sums(values, groups), [3.0, 3.0, 3.0, 0.0])


def test_squares_neither_overflow_nor_vanish() -> None:
    for size in (1e-300, 1e-200, 1.0, 1e200, 1.5e308):
        got = moments_of(np.array([size, size, -size, -size]), np.zeros(4, dtype=np.int64), 0)
        np.testing.assert_array_equal(got.mean, 0.0)
        np.testing.assert_array_equal(got.std, size)
        assert got.spread.all()


def test_scaling_by_powers_of_two_changes_no_digit() -> None:
    values = np.random.default_rng(0).normal(size=64)
    groups = np.arange(64) % 5
    got = moments_of(values, groups, 1)
    for label in range(5):
        members = np.sort(values[groups == label])
        mean = np.add.accumulate(members)[-1] / len(members)
        squares = np.add.accumulate((members - mean) ** 2)[-1]
        assert got.mean[label] == mean
        assert got.std[label] == np.sqrt(squares / (len(members) - 1))


def test_scales_of_a_batch() -> None:
    # 1 and 3: mean 2, population deviation 1, sample variance 2
    values = np.array([1.0, NAN, 3.0])
    assert normalizing(values, 0, 0.25) == (2.0, 1 / 1.25)
    np.testing.assert_allclose(whitening(values), (2.0, 1 / np.sqrt(2 + 1e-8)), rtol=1e-15)
    assert std_of(values, 0) == 1.0
    for flat in ([], [NAN], [2.0], [0.6, 0.1 + 0.2 + 0.3]):
        assert normalizing(np.array(flat), 1, 0.0)[1] == 0.0
        assert whitening(np.array(flat))[1] == 0.0
    assert np.isnan(std_of(np.array([2.0, NAN]), 0))
