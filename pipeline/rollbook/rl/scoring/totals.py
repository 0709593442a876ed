"""Several rewards made one number, and the numbers TRL reports about them.

    r_i = Σ_k w_k r_{i,k}        a missing r_{i,k} counts 0; if all are missing, r_i is missing too

As TRL 1.16 does it (ALGORITHMS §2, §14): one missing component does not rescale the other weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def weighted_total(components: FloatArray, weights: Sequence[float]) -> FloatArray:
    """Sum of weighted rewards.

    Args:
        components: [B, K] one column per reward function; NaN = does not apply.
        weights: [K].

    Returns:
        [B]; NaN where no reward applies; not finite where the sum is beyond the range of float64.
    """
    total = np.zeros(len(components))
    with np.errstate(over="ignore", invalid="ignore"):
        # One after the other: the same rounding everywhere.
        for place, weight in enumerate(weights):
            total += np.where(np.isnan(components[:, place]), 0.0, weight * components[:, place])
    return np.where(np.isnan(components).all(axis=1), np.nan, total)


def reward_metrics(
    rewards: FloatArray, components: FloatArray, labels: Sequence[str]
) -> dict[str, float]:
    """`reward`, `reward_std`, `rewards/<label>/mean` and `rewards/<label>/std`, missing values left out.

    Args:
        rewards: [B] totals.
        components: [B, K] of each function.
        labels: [K].

    Returns:
        Means, and sample deviations over the whole batch; NaN where there are too few values.
    """
    metrics = {}
    for place, label in enumerate(labels):
        metrics[f"rewards/{label}/mean"], metrics[f"rewards/{label}/std"] = mean_and_std(
            components[:, place]
        )
    metrics["reward"], metrics["reward_std"] = mean_and_std(rewards)
    return metrics


def mean_and_std(values: FloatArray) -> tuple[float, float]:
    """Mean and sample deviation of the values that are not NaN; NaN where there are too few."""
    known = np.sort(values[~np.isnan(values)])  # sorted: the order of rows changes no digit
    mean = float(known.mean()) if known.size else float("nan")
    return mean, float(known.std(ddof=1)) if known.size > 1 else float("nan")
