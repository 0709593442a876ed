"""Statistics of groups with any labels, in float64; shared by the estimators.

Every sum runs over a group's values in ascending order, so the order of the rows changes no digit of the result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rollbook.components.advantages.base import AdvantageInputs, FloatArray
from rollbook.core.component import Model
from rollbook.core.ragged import IntArray

Ddof = Literal[0, 1]
"""0 = population deviation, 1 = sample deviation."""
Eps = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""A number added to a denominator."""
WHITENING_STD = 1e-4
"""Root of the 1e-8 that verl adds to a variance before it divides by its root."""
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
        count: values that are not missing.
        size: values, missing ones too.
    """

    mean: FloatArray
    std: FloatArray
    spread: NDArray[np.bool_]
    count: IntArray
    size: IntArray


class Singletons(Model):
    """What an answer without siblings is compared with. Training asks for groups; recorded numbers have such rows.

    Attributes:
        singleton: `zero` gives it advantage 0, as TRL does; `reward` takes mean 0 and deviation 1, so that it keeps its
            raw reward, as verl does.
    """

    singleton: Literal["zero", "reward"] = "zero"

    def compared(self, inputs: AdvantageInputs, ddof: int = 0) -> Moments:
        """Moments of the rewards of each row's group; of one that keeps its reward 0 and 1, with spread."""
        group = moments_of(inputs.rewards, inputs.groups, ddof)
        if self.singleton == "zero":
            return group
        alone = inputs.scorable & (group.size == 1)
        return replace(
            group,
            mean=np.where(alone, 0.0, group.mean),
            std=np.where(alone, 1.0, group.std),
            spread=group.spread | alone,
        )


def moments_of(values: FloatArray, groups: IntArray, ddof: int) -> Moments:
    """Mean and deviation per group.

    Args:
        values: [B]; NaN = missing.
        groups: [B] labels; members need not be contiguous.
        ddof: 0 divides the sum of squares by the number of values, 1 by one less.
    """
    labels, label_of = np.unique(groups, return_inverse=True)
    order = ascending(values, label_of)
    value, label = values[order], label_of[order]
    count = np.bincount(label, minlength=len(labels))
    spread, exponent = _spread_and_size(value, label, len(labels))
    scaled = np.ldexp(value, -exponent[label])  # by powers of two, so that squares stay in range
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.bincount(label, scaled, len(labels)) / count
        squares = np.bincount(label, (scaled - mean[label]) ** 2, len(labels))
        std = np.ldexp(np.sqrt(squares / np.maximum(count - ddof, 0)), exponent)
    std[~spread] = 0.0
    size = np.bincount(label_of)
    std[(count == 0) | ((count == 1) & (size > 1))] = np.nan
    mean = np.ldexp(mean, exponent)
    return Moments(mean[label_of], std[label_of], spread[label_of], count[label_of], size[label_of])


def group_sums(values: FloatArray, groups: IntArray) -> FloatArray:
    """[B] sum of the values of each row's group; missing ones are left out."""
    labels, label_of = np.unique(groups, return_inverse=True)
    order = ascending(values, label_of)
    sums: FloatArray = np.bincount(label_of[order], values[order], len(labels)).astype(np.float64)
    return sums[label_of]


def any_of_group(flags: NDArray[np.bool_], groups: IntArray) -> NDArray[np.bool_]:
    """[B] whether any member of each row's group has its flag set."""
    labels, label_of = np.unique(groups, return_inverse=True)
    return np.bincount(label_of, flags, len(labels))[label_of] > 0


def std_of(values: FloatArray, ddof: int) -> float:
    """Deviation of all values that are not missing; 0 without spread, NaN with fewer than two."""
    return _overall(values, ddof)[1] if np.count_nonzero(~np.isnan(values)) > 1 else float("nan")


def normalizing(values: FloatArray, ddof: int, eps: float) -> tuple[float, float]:
    """Mean m and factor f such that (x − m)·f = (x − mean)/(std + eps); f = 0 without spread.

    Args:
        values: any number of them; NaN = missing.
        ddof: of the deviation.
        eps: added to it.
    """
    mean, std = _overall(values, ddof)
    return mean, 1.0 / (std + eps) if std else 0.0


def whitening(values: FloatArray) -> tuple[float, float]:
    """Mean m and factor f such that (x − m)·f = (x − mean)/sqrt(var + 1e-8); f = 0 without spread.

    verl's whitening, with the sample variance.

    Args:
        values: any number of them; NaN = missing.
    """
    mean, std = _overall(values, 1)
    return mean, 1.0 / math.hypot(std, WHITENING_STD) if std else 0.0


def _overall(values: FloatArray, ddof: int) -> tuple[float, float]:
    """Mean and deviation of all values; the deviation is 0 without spread."""
    known = values[~np.isnan(values)]
    if not known.size:
        return 0.0, 0.0
    moments = moments_of(known, np.zeros(len(known), dtype=np.int64), ddof)
    return float(moments.mean[0]), float(moments.std[0])


def ascending(values: FloatArray, labels: IntArray) -> IntArray:
    """[≤ B] places of the values that are not missing, by label, then value."""
    order = np.lexsort((values, labels))
    return order[~np.isnan(values[order])]


def _spread_and_size(
    value: FloatArray, label: IntArray, labels: int
) -> tuple[NDArray[np.bool_], IntArray]:
    """[labels] whether largest and smallest value differ by more than rounding, and the binary exponent of the larger
    magnitude; False and 0 without values."""
    largest, smallest = np.full(labels, -np.inf), np.full(labels, np.inf)
    np.maximum.at(largest, label, value)
    np.minimum.at(smallest, label, value)
    size = np.maximum(np.abs(largest), np.abs(smallest))
    half_range = largest / 2 - smallest / 2  # the range itself may be beyond float64
    exponent = np.frexp(np.where(np.isfinite(size), size, 0.0))[1]
    return half_range > NOISE / 2 * size, exponent
