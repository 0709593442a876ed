"""max_rl: rewards relative to their group's mean and divided by it, the advantage of MaxRL.

    A_i = (r_i − μ_g) / (μ_g + eps)

Maximum Likelihood Reinforcement Learning, arXiv 2602.02710. With rewards 0 and 1, μ_g is the pass rate, and its inverse
turns the gradient of the pass rate into that of its logarithm: a prompt solved once in eight counts seven times as much
as in Dr. GRPO. Against GRPO: σ, which also lifts nearly solved prompts, is replaced by μ. Rewards are meant not to be
negative. A group whose mean is not above 0 has no success to learn from and gets 0, whatever its members are; so do
rows without a reward, single answers and groups of equal rewards.
"""

from __future__ import annotations

import numpy as np

from rollbook.components.advantages.base import (
    AdvantageEstimator,
    AdvantageInputs,
    AdvantageOutputs,
    Arithmetic,
)
from rollbook.components.advantages.moments import NOISE, Eps, moments_of
from rollbook.components.advantages.writing import less, mean_line, no_signal, number, signed


class MaxRl(AdvantageEstimator):
    """Rewards relative to the pass rate.

    Attributes:
        eps: added to the mean.
    """

    eps: Eps = 1e-6

    def __call__(self, inputs: AdvantageInputs) -> AdvantageOutputs:
        group = moments_of(inputs.rewards, inputs.groups, 0)
        # A mean that is rounding of a sum of both signs is 0, not a tiny divisor.
        signal = group.spread & inputs.scorable & (group.mean > NOISE * group.std)
        mean = group.mean[signal]
        advantages = np.zeros(len(inputs.rewards))
        advantages[signal] = (inputs.rewards[signal] - mean) / (mean + self.eps)
        return AdvantageOutputs(advantages, group.mean, group.std, group.spread)

    def arithmetic(self, inputs: AdvantageInputs, row: int) -> Arithmetic:
        """See `AdvantageEstimator.arithmetic`."""
        group = moments_of(inputs.rewards, inputs.groups, 0)
        if not group.spread[row]:
            return no_signal(inputs, row)
        reward, mean = float(inputs.rewards[row]), float(group.mean[row])
        if mean <= 0:
            return [
                mean_line(inputs, row, group),
                "μ is not above 0: nothing to learn from, A = 0",
            ], 0.0
        value = (reward - mean) / (mean + self.eps)
        return [
            mean_line(inputs, row, group),
            f"A = {less(reward, mean)} / ({number(mean)} + {self.eps:g}) = {signed(value)}",
        ], value
