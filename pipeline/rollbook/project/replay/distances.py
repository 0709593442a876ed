"""How far apart numbers are, as a tolerance counts: as a share of some scale."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Distances = NDArray[np.floating[Any]]


def distances(one: ArrayLike, other: ArrayLike, scale: ArrayLike = 1.0) -> Distances:
    """|one − other| / scale, element by element; infinity where that is no number, but 0 between equal ones."""
    a, b, by = (np.asarray(each, dtype=np.float64) for each in (one, other, scale))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        found = np.nan_to_num(np.abs(a - b) / by, nan=np.inf, posinf=np.inf)
    return np.where(a == b, 0.0, found)


def number_distances(one: ArrayLike, other: ArrayLike) -> Distances:
    """Relative to the larger of both numbers and 1; between an infinite number and another one infinite."""
    a, b = (np.asarray(each, dtype=np.float64) for each in (one, other))
    return distances(a, b, np.maximum(1.0, np.maximum(np.abs(a), np.abs(b))))


def largest_finite(values: NDArray[np.float64]) -> float:
    """The largest absolute value of those that are finite; 0 if none is."""
    return float(np.max(np.abs(values), where=np.isfinite(values), initial=0.0))


def finite_or_none(distance: float) -> float | None:
    """The distance; None if no tolerance is that large."""
    return float(distance) if math.isfinite(distance) else None
