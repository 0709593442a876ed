"""Which numbers count as the same: those with the same bits, and finite ones that are no farther apart than allowed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def same_numbers(
    old: NDArray[np.float64], new: NDArray[np.float64], tolerance: float
) -> NDArray[np.bool_]:
    """Where numbers are the same; NaN is itself, whatever its bits.

    Args:
        old, new: of one shape.
        tolerance: relative to the larger of both and 1; 0 asks for the same bits. Infinite numbers have none.
    """
    same = (old.view(np.int64) == new.view(np.int64)) | (np.isnan(old) & np.isnan(new))
    if not tolerance:
        return same
    finite = np.isfinite(old) & np.isfinite(new)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(old - new)
        scale = np.maximum(1.0, np.maximum(np.abs(old), np.abs(new)))
        near: NDArray[np.bool_] = same | (finite & (apart <= tolerance * scale))
    return near


def largest_finite(values: NDArray[np.float64]) -> float:
    """The largest absolute value of those that are finite; 0 if none is."""
    return float(np.max(np.abs(values), where=np.isfinite(values), initial=0.0))
