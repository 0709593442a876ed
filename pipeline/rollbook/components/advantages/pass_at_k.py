"""pass_at_k: only the best answer of a group learns, by how much it beats the second best.

    A_i = (r_i − max_{j≠i} r_j) / (σ_g + eps)   for the best answer of the group, else 0
    scale: none   without the division

The objective is the best reward of a group instead of the mean: max_j r_j − max_{j≠i} r_j, the leave-one-out baseline
of arXiv 2503.19595, is 0 for all but the best. The division is verl's (`grpo_passk`). Against GRPO: worse answers are
not pushed down, so answers stay diverse; two equally good best answers give 0. Rows without a reward are left out;
single answers and groups of equal rewards get 0 (verl refuses single ones).
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from rollbook.components.advantages.base import (
    AdvantageEstimator,
    AdvantageInputs,
    AdvantageOutputs,
    Arithmetic,
)
from rollbook.components.advantages.moments import Ddof, Eps, ascending, moments_of
from rollbook.components.advantages.writing import (
    bracketed,
    members,
    no_signal,
    number,
    signed,
)


class PassAtK(AdvantageEstimator):
    """The lead of the best answer.

    Attributes:
        scale: what the lead is divided by.
        std_ddof: 0 = population deviation, 1 = sample deviation.
        eps: added to σ.
    """

    scale: Literal["group", "none"] = "group"
    std_ddof: Ddof = 0
    eps: Eps = 1e-4

    def __call__(self, inputs: AdvantageInputs) -> AdvantageOutputs:
        group = moments_of(inputs.rewards, inputs.groups, self.std_ddof)
        order = ascending(inputs.rewards, inputs.groups)
        label = inputs.groups[order]
        following = np.append(label[1:], label[:1] - 1)  # after the last comes what no label is
        ends = np.flatnonzero(label != following)
        ends = ends[group.spread[order[ends]]]  # a group with spread has two members
        best, second = order[ends], order[ends - 1]
        advantages = np.zeros(len(inputs.rewards))
        advantages[best] = inputs.rewards[best] - inputs.rewards[second]
        if self.scale == "group":
            advantages[best] /= group.std[best] + self.eps
        return AdvantageOutputs(advantages, group.mean, group.std, group.spread)

    def arithmetic(self, inputs: AdvantageInputs, row: int) -> Arithmetic:
        """See `AdvantageEstimator.arithmetic`."""
        group = moments_of(inputs.rewards, inputs.groups, self.std_ddof)
        if not group.spread[row]:
            return no_signal(inputs, row)
        second, best = np.sort(members(inputs, row))[-2:]
        reward = float(inputs.rewards[row])
        if reward < best:
            return [
                f"the best reward of its group is {number(best)}, its own {number(reward)}: A = 0"
            ], 0.0
        lead = float(best - second)
        line = f"{number(best)} − {bracketed(float(second))}"
        if self.scale == "none":
            return [f"A = {line} = {signed(lead)}, best less second best"], lead
        std = float(group.std[row])
        value = lead / (std + self.eps)
        return [
            f"best less second best = {line} = {number(lead)}; σ of the group = {number(std)}",
            f"A = {number(lead)} / ({number(std)} + {self.eps:g}) = {signed(value)}",
        ], value
