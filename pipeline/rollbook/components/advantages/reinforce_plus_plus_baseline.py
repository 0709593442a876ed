"""reinforce_plus_plus_baseline: rewards less their group's mean, whitened over all tokens of the batch.

    c_i = r_i − μ_g
    A_i = (c_i − mean(c)) / sqrt(var(c) + 1e-8)        each c_i counted once per trained-on token; sample variance

REINFORCE++ with a baseline, arXiv 2501.03262; verl `reinforce_plus_plus_baseline`. Against GRPO: one deviation for the
whole batch instead of one per group, so nearly solved and nearly unsolved prompts are not blown up. The mean over
tokens is not 0 if long answers fare better or worse; then even a group of equal rewards is moved off 0. Rows without a
reward or without a scorable sibling get 0 and are left out; verl gives a single answer its raw reward
(`singleton: reward`).
"""

from __future__ import annotations

import math

import numpy as np

from rollbook.components.advantages.base import (
    AdvantageEstimator,
    AdvantageInputs,
    AdvantageOutputs,
    Arithmetic,
)
from rollbook.components.advantages.moments import (
    WHITENING_STD,
    Singletons,
    moments_of,
    whitening,
)
from rollbook.components.advantages.writing import (
    bracketed,
    divisor,
    mean_line,
    no_signal,
    number,
    signed,
)


class ReinforcePlusPlusBaseline(Singletons, AdvantageEstimator):
    """Whitened group-relative rewards."""

    def __call__(self, inputs: AdvantageInputs) -> AdvantageOutputs:
        group = self.compared(inputs)
        compared = inputs.scorable & ((group.count > 1) | group.spread)
        centred = np.zeros(len(inputs.rewards))
        signal = compared & group.spread
        centred[signal] = inputs.rewards[signal] - group.mean[signal]
        mean, factor = whitening(np.repeat(centred[compared], inputs.lengths[compared]))
        advantages = np.where(compared, (centred - mean) * factor, 0.0)
        return AdvantageOutputs(advantages, group.mean, group.std, group.spread)

    def arithmetic(self, inputs: AdvantageInputs, row: int) -> Arithmetic:
        """See `AdvantageEstimator.arithmetic`."""
        group = moments_of(inputs.rewards, inputs.groups, 0)
        compared = inputs.scorable & (group.count > 1)
        if not compared[row]:
            return no_signal(inputs, row)
        centred = np.where(compared & group.spread, inputs.rewards - group.mean, 0.0)
        mean, factor = whitening(np.repeat(centred[compared], inputs.lengths[compared]))
        reward, own = float(inputs.rewards[row]), float(centred[row])
        value = (own - mean) * factor
        std = math.sqrt(max((1 / factor) ** 2 - WHITENING_STD**2, 0.0)) if factor else 0.0
        return [
            mean_line(inputs, row, group),
            f"c = {number(reward)} − {bracketed(float(group.mean[row]))} = {signed(own)}",
            f"over all tokens of the iteration c has mean {number(mean)} and deviation {number(std)}",
            f"A = ({signed(own)} − {bracketed(mean)}) / {divisor(factor)} = {signed(value)}",
        ], value
