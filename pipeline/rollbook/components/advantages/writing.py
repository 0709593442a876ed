"""Words and numbers for `AdvantageEstimator.arithmetic`: only for readers, nothing here decides an advantage."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from rollbook.components.advantages.base import AdvantageInputs, Arithmetic, FloatArray
from rollbook.components.advantages.moments import Moments

WRITTEN_MEMBERS = 16
"""Rewards of a group that are written one by one; of more there is only the number."""


def number(value: float) -> str:
    """Six digits; a missing one is a dash."""
    return "–" if math.isnan(value) else f"{value:.6g}"


def members(inputs: AdvantageInputs, row: int) -> FloatArray:
    """Rewards of the rollout's group, its own among them, without those that are missing."""
    rewards = inputs.rewards[inputs.groups == inputs.groups[row]]
    return rewards[~np.isnan(rewards)]


def listed(values: Iterable[float]) -> str:
    """Values with commas between them; the number of them where there are many."""
    found = list(values)
    if len(found) > WRITTEN_MEMBERS:
        return f"{len(found)} rewards"
    return ", ".join(map(number, found))


def mean_line(inputs: AdvantageInputs, row: int, group: Moments) -> str:
    """The line that writes out the mean of the rollout's group."""
    return f"μ = mean({listed(members(inputs, row))}) = {number(group.mean[row])}"


def no_signal(inputs: AdvantageInputs, row: int) -> Arithmetic:
    """Why a rollout has advantage 0 where its group has no spread, or nobody to compare with."""
    if len(members(inputs, row)) == 1:
        return ["no other answer to this prompt has a reward: nothing to compare with, A = 0"], 0.0
    return [
        f"all rewards of its group are {number(float(inputs.rewards[row]))}: no signal, A = 0"
    ], 0.0


def signed(value: float) -> str:
    """Six digits with a sign."""
    return f"{value:+.6g}"


def less(reward: float, what: float) -> str:
    """A difference in brackets."""
    return f"({number(reward)} − {bracketed(what)})"


def bracketed(value: float) -> str:
    """A number that may stand behind an operator."""
    return f"({number(value)})" if value < 0 else number(value)


def divisor(factor: float) -> str:
    """What a factor divides by."""
    return number(1 / factor) if factor else "∞"
