"""group: rewards relative to the answers to the same prompt, the advantage of GRPO.

    A_i = (r_i − μ_g) / (σ + eps)

    scale: group   σ of the row's own group (GRPO, arXiv 2402.03300 §4.1.2)
    scale: batch   σ of the raw rewards of the whole batch (TRL's `scale_rewards="batch"`)
    scale: none    A_i = r_i − μ_g (Dr. GRPO, arXiv 2503.20783, eq. 3): no division, which would give nearly solved and
                   nearly unsolved prompts more weight

σ is the population deviation by default, which gives +1.41 −0.94 +0.47 −0.94 for rewards .8 .3 .6 .3; TRL and verl
divide by G − 1 (`std_ddof: 1`), the same but for a factor sqrt((G − 1) / G). Rows without a reward are left out of μ
and σ and get 0, as do groups in which all rewards are equal, up to rounding, or fewer than two rows have one.
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
from rollbook.components.advantages.moments import (
    Ddof,
    Eps,
    Singletons,
    moments_of,
    std_of,
)
from rollbook.components.advantages.writing import (
    bracketed,
    less,
    mean_line,
    no_signal,
    number,
    signed,
)


class Group(Singletons, AdvantageEstimator):
    """Group-relative advantages.

    Attributes:
        scale: what the centred reward is divided by.
        std_ddof: 0 = population deviation, 1 = sample deviation.
        eps: added to σ; makes a spread far below it harmless instead of ±1.
    """

    scale: Literal["group", "batch", "none"] = "group"
    std_ddof: Ddof = 0
    eps: Eps = 1e-4

    def __call__(self, inputs: AdvantageInputs) -> AdvantageOutputs:
        group = self.compared(inputs, self.std_ddof)
        std = group.std
        if self.scale == "batch":
            std = np.full(len(inputs.rewards), std_of(inputs.rewards, self.std_ddof))
        advantages = np.zeros(len(inputs.rewards))
        signal = group.spread & ~np.isnan(inputs.rewards)
        centred = inputs.rewards[signal] - group.mean[signal]
        advantages[signal] = centred if self.scale == "none" else centred / (std[signal] + self.eps)
        return AdvantageOutputs(advantages, group.mean, std, group.spread)

    def arithmetic(self, inputs: AdvantageInputs, row: int) -> Arithmetic:
        """See `AdvantageEstimator.arithmetic`."""
        group = moments_of(inputs.rewards, inputs.groups, self.std_ddof)
        if not group.spread[row]:
            return no_signal(inputs, row)
        reward, mean = float(inputs.rewards[row]), float(group.mean[row])
        lines = [mean_line(inputs, row, group)]
        if self.scale == "none":
            return [
                *lines,
                f"A = {number(reward)} − {bracketed(mean)} = {signed(reward - mean)}",
            ], reward - mean
        std, of = float(group.std[row]), "of the same rewards"
        if self.scale == "batch":
            std = std_of(inputs.rewards, self.std_ddof)
            of = f"of all {int(inputs.scorable.sum())} rewards of the iteration"
        value = (reward - mean) / (std + self.eps)
        return [
            *lines,
            f"σ = {number(std)}, the {'sample' if self.std_ddof else 'population'} deviation {of}",
            f"A = {less(reward, mean)} / ({number(std)} + {self.eps:g}) = {signed(value)}",
        ], value
