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

import numpy as np

from rollbook.components.advantages.base import (
    AdvantageEstimator,
    AdvantageInputs,
    AdvantageOutputs,
)
from rollbook.components.advantages.moments import Singletons, whitening


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
