"""Figures that claim a difference: by prompt, since answers to one prompt are alike."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np

from rollbook.core.ragged import IntArray
from rollbook.rl.estimation import Flags
from rollbook.rl.evaluation import Estimate, interval
from rollbook.rl.scoring.totals import FloatArray

FEWEST_GROUPS = 16
"""With fewer groups an interval from the normal distribution says little."""

Item = TypeVar("Item")


def without_nan(values: FloatArray) -> FloatArray:
    """The values that are there: NaN = missing."""
    return values[~np.isnan(values)]


def group_means(values: FloatArray, groups: IntArray, where: Flags | None = None) -> FloatArray:
    """Mean of a value in each group that has one, by label.

    Args:
        values: [B]; NaN = missing.
        groups: [B] labels.
        where: [B] rows that count; default: all.
    """
    counted = ~np.isnan(values) if where is None else where & ~np.isnan(values)
    label_of = np.unique(groups[counted], return_inverse=True)[1]
    means: FloatArray = np.bincount(label_of, values[counted]) / np.bincount(label_of)
    return means


def mean_of(values: FloatArray) -> Estimate:
    """Mean over groups with its 95 % interval; NaN bounds, which are beyond no limit, for too few."""
    found = interval(values.tolist())
    return found if len(values) >= FEWEST_GROUPS else Estimate(found.mean, math.nan, math.nan)


def difference(before: Estimate, after: Estimate) -> Estimate:
    """How much `after` is above `before`, both of other prompts, with its 95 % interval."""
    half = math.hypot(before.high - before.low, after.high - after.low) / 2
    change = after.mean - before.mean
    return Estimate(change, change - half, change + half)


def same_pairs(answers: IntArray, groups: IntArray) -> FloatArray:
    """[G] share of the pairs of each group that are the same answer, by label; NaN for groups of one.

    Args:
        answers: [B] a number for each answer.
        groups: [B] labels, counted from 0.
    """
    count = int(answers.max(initial=0)) + 1
    pairs, counts = np.unique(groups * count + answers, return_counts=True)
    same = np.bincount(pairs // count, counts * (counts - 1.0))
    sizes = np.bincount(groups)
    with np.errstate(invalid="ignore", divide="ignore"):
        shares: FloatArray = same / (sizes * (sizes - 1.0))
    return shares


def first_and_last(
    items: Sequence[Item], share: float = 1 / 3
) -> tuple[Sequence[Item], Sequence[Item]]:
    """The first and the last part of a chain, at least one of each; empty parts if there are not two."""
    if len(items) < 2:
        return [], []
    count = max(1, int(len(items) * share))
    return items[:count], items[-count:]


def successive(items: Sequence[Item], flagged: Sequence[bool], least: int) -> list[Item]:
    """Items that are flagged, in stretches of at least `least` neighbours."""
    return [
        item
        for start, stop in _stretches(flagged)
        if stop - start >= least
        for item in items[start:stop]
    ]


def _stretches(flagged: Sequence[bool]) -> Iterator[tuple[int, int]]:
    start = 0
    for place, flag in enumerate([*flagged, False]):
        if not flag:
            if place > start:
                yield start, place
            start = place + 1
