"""gpg: rewards relative to their group's mean, scaled up by the share of answers that scored nothing.

    A_i = B / #{j: r_j ≠ 0} · (r_i − μ_g)        B rows with a reward; both counts are over the batch

GPG, arXiv 2504.02546; verl `gpg`. Against GRPO: nothing is divided by σ; the factor makes up for answers without
signal, which otherwise shrink the gradient of a mean over the batch. The paper counts answers of groups with spread;
verl, and this file, count rewards that are not 0. Rows without a reward, groups of equal rewards and single answers get
0 (verl: a single answer keeps its raw reward, `singleton: reward`).
"""

from __future__ import annotations

import numpy as np

from rollbook.components.advantages.base import (
    AdvantageEstimator,
    AdvantageInputs,
    AdvantageOutputs,
    Arithmetic,
)
from rollbook.components.advantages.moments import Singletons, moments_of
from rollbook.components.advantages.writing import less, mean_line, no_signal, signed


class Gpg(Singletons, AdvantageEstimator):
    """Group-relative rewards, scaled by the share of rewards that are not 0."""

    def __call__(self, inputs: AdvantageInputs) -> AdvantageOutputs:
        group = self.compared(inputs)
        known = inputs.unpenalized[inputs.scorable]
        scale = len(known) / max(int(np.count_nonzero(known)), 1)
        signal = group.spread & inputs.scorable
        advantages = np.zeros(len(inputs.rewards))
        advantages[signal] = scale * (inputs.rewards[signal] - group.mean[signal])
        return AdvantageOutputs(advantages, group.mean, group.std, group.spread)

    def arithmetic(self, inputs: AdvantageInputs, row: int) -> Arithmetic:
        """See `AdvantageEstimator.arithmetic`."""
        group = moments_of(inputs.rewards, inputs.groups, 0)
        if not group.spread[row]:
            return no_signal(inputs, row)
        known = inputs.unpenalized[inputs.scorable]
        scored = max(int(np.count_nonzero(known)), 1)
        reward, mean = float(inputs.rewards[row]), float(group.mean[row])
        value = len(known) / scored * (reward - mean)
        return [
            mean_line(inputs, row, group),
            f"of {len(known)} rewards of the iteration {scored} are not 0",
            f"A = {len(known)} / {scored} · {less(reward, mean)} = {signed(value)}",
        ], value
