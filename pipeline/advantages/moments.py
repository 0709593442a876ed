"""Statistics of groups with any labels, in float64; shared by the estimators.

Every sum runs over a group's values in ascending order, so the order of the rows changes no digit of the result.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.advantages.base import FloatArray, IntArray

NOISE = 1e-9
"""Rewards that differ by less than this share of the largest one in their group are equal: sums of the same parts in
another order differ by rounding, and dividing by such a spread would make advantages of about 1 out of nothing."""


@dataclass(frozen=True)
class Moments:
    """Statistics of the group of each row, all [B]; missing values are left out.

    Attributes:
        mean: NaN where all values are missing.
        std: NaN with fewer than two values, but 0 for a value that is a group of its own.
        spread: whether two values differ by more than rounding.
    """

    mean: FloatArray
    std: FloatArray
    spread: NDArray[np.bool_]


def moments_of(values: FloatArray, groups: IntArray, ddof: int) -> Moments:
    """Mean and deviation per group.

    Args:
        values: [B]; NaN = missing.
        groups: [B] labels; members need not be contiguous.
        ddof: 0 divides the sum of squares by the number of values, 1 by one less.
    """
    labels, label_of = np.unique(groups, return_inverse=True)
    order = np.lexsort((values, label_of))  # by group, then value
    order = order[~np.isnan(values[order])]
    value, label = values[order], label_of[order]
    count = np.bincount(label, minlength=len(labels))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        mean = np.bincount(label, value, len(labels)) / count
        squares = np.bincount(label, (value - mean[label]) ** 2, len(labels))
        std = np.sqrt(squares / np.maximum(count - ddof, 0))
    spread = _has_spread(value, label, len(labels))
    std[~spread] = 0.0
    std[(count == 0) | ((count == 1) & (np.bincount(label_of) > 1))] = np.nan
    return Moments(mean[label_of], std[label_of], spread[label_of])


def std_of(values: FloatArray, ddof: int) -> float:
    """Deviation of all values that are not missing; NaN with fewer than two."""
    known = np.sort(values[~np.isnan(values)])
    return float(known.std(ddof=ddof)) if known.size > 1 else float("nan")


def _has_spread(value: FloatArray, label: IntArray, labels: int) -> NDArray[np.bool_]:
    """[labels] whether largest and smallest value differ by more than rounding; False without values."""
    largest, smallest = np.full(labels, -np.inf), np.full(labels, np.inf)
    np.maximum.at(largest, label, value)
    np.minimum.at(smallest, label, value)
    size = np.maximum(np.abs(largest), np.abs(smallest))
    return largest - smallest > NOISE * size
