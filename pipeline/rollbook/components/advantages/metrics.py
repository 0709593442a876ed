"""Numbers about the advantages of an iteration."""

from __future__ import annotations

import numpy as np

from rollbook.components.advantages.base import AdvantageOutputs, FloatArray
from rollbook.core.ragged import IntArray

ZERO_STD = 1e-8
"""TRL's bound for `frac_reward_zero_std`."""


def advantage_metrics(
    estimated: AdvantageOutputs, rewards: FloatArray, groups: IntArray
) -> dict[str, float]:
    """What the update will have to work with.

    `frac_reward_zero_std` is the share of rows whose σ is 0, as in TRL; an undefined σ counts as not 0. The other
    shares are of groups: `solved` if all its rewards are the highest of the batch, `unsolved` if all are the lowest.
    They are NaN if the batch has only one reward, for then nothing says which it is.

    Args:
        estimated: what the estimator returned.
        rewards: [B], NaN = missing.
        groups: [B] labels.
    """
    if not len(rewards):
        return {}
    first = np.unique(groups, return_index=True)[1]
    informative, mean = estimated.informative[first], estimated.group_mean[first]
    return {
        "frac_reward_zero_std": float(np.mean(np.abs(estimated.group_std) <= ZERO_STD)),
        "groups": len(first),
        "informative_groups": int(informative.sum()),
        "informative_groups_share": float(informative.mean()),
        **_solved_shares(informative, mean, rewards),
        "reward_std_within_groups": _mean(estimated.group_std[first]),
        "advantages/mean": _mean(estimated.advantages),
        "advantages/std": float(np.sort(estimated.advantages).std()),
        "advantages/absmax": float(np.abs(estimated.advantages).max()),
    }


def _solved_shares(
    informative: np.ndarray[tuple[int], np.dtype[np.bool_]], mean: FloatArray, rewards: FloatArray
) -> dict[str, float]:
    known = rewards[~np.isnan(rewards)]
    names = ("unsolved_groups_share", "solved_groups_share")
    if not known.size or known.min() == known.max():
        return dict.fromkeys(names, float("nan"))
    flat = np.where(informative, np.nan, mean)  # NaN is close to nothing
    ends = (known.min(), known.max())
    return {
        name: float(np.isclose(flat, end).mean()) for name, end in zip(names, ends, strict=True)
    }


def _mean(values: FloatArray) -> float:
    known = np.sort(values[~np.isnan(values)])  # sorted: the order of rows changes no digit
    return float(known.mean()) if known.size else float("nan")
