"""leave_one_out: rewards relative to the mean of the other answers to the same prompt, the advantage of RLOO.

    A_i = r_i − mean_{j≠i} r_j = n/(n − 1) · (r_i − μ_g)        n scorable members of the group
    normalize:  A_i ← (A_i − mean(A)) / (std(A) + eps)           over all rows of the batch that have a sibling

RLOO, arXiv 2402.14740; TRL 1.16 RLOOTrainer (`normalize_advantages`, there with `std_ddof: 1`). Against GRPO: the
baseline does not contain the answer itself, so the gradient is unbiased, and nothing is divided by σ. Rows without a
reward or without a scorable sibling and groups of equal rewards get 0; verl gives a single answer its raw reward
(`singleton: reward`).
"""

from __future__ import annotations

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
    normalizing,
)
from rollbook.components.advantages.writing import bracketed, divisor, no_signal, number, signed


class LeaveOneOut(Singletons, AdvantageEstimator):
    """Rewards less the mean of their siblings.

    Attributes:
        normalize: whether advantages are brought to mean 0 and deviation 1 over the batch.
        std_ddof: 0 = population deviation, 1 = sample deviation.
        eps: added to the deviation of the batch.
    """

    normalize: bool = False
    std_ddof: Ddof = 0
    eps: Eps = 1e-4

    def __call__(self, inputs: AdvantageInputs) -> AdvantageOutputs:
        group = self.compared(inputs, self.std_ddof)
        advantages = np.zeros(len(inputs.rewards))
        signal = group.spread & inputs.scorable
        count = group.count[signal]
        advantages[signal] = (inputs.rewards[signal] - group.mean[signal]) * (
            count / np.maximum(count - 1, 1)
        )
        if self.normalize:
            compared = inputs.scorable & ((group.count > 1) | group.spread)
            mean, factor = normalizing(advantages[compared], self.std_ddof, self.eps)
            advantages[signal] = (advantages[signal] - mean) * factor
        return AdvantageOutputs(advantages, group.mean, group.std, group.spread)

    def arithmetic(self, inputs: AdvantageInputs, row: int) -> Arithmetic:
        """See `AdvantageEstimator.arithmetic`."""
        group = moments_of(inputs.rewards, inputs.groups, self.std_ddof)
        if not group.spread[row]:
            return no_signal(inputs, row)
        reward = float(inputs.rewards[row])
        count = int(group.count[row])
        others = (float(group.mean[row]) * count - reward) / (count - 1)
        value = reward - others
        lines = [
            f"mean of the {count - 1} other rewards = {number(others)}",
            f"A = {number(reward)} − {bracketed(others)} = {signed(value)}",
        ]
        if not self.normalize:
            return lines, value
        raw = np.zeros(len(inputs.rewards))
        signal = group.spread & inputs.scorable
        counts = group.count[signal]
        raw[signal] = (inputs.rewards[signal] - group.mean[signal]) * counts / (counts - 1)
        mean, factor = normalizing(
            raw[inputs.scorable & (group.count > 1)], self.std_ddof, self.eps
        )
        last = (value - mean) * factor
        return [
            *lines,
            f"A ← ({signed(value)} − {bracketed(mean)}) / {divisor(factor)} = {signed(last)}, "
            "by mean and deviation of all advantages of the iteration",
        ], last
