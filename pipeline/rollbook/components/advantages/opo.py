"""opo: rewards relative to the length-weighted mean of their group.

    A_i = r_i − Σ_j n_j r_j / Σ_j n_j        n_j trained-on tokens of answer j

OPO, On-Policy RL with Optimal Reward Baseline, arXiv 2505.23585; verl `opo`. Against GRPO: this baseline has the
least variance if the squared gradient of an answer grows with its length, and nothing is divided by σ. The advantages
of a group do not sum to 0, their length-weighted ones do. Rows without a reward, groups of equal rewards and single
answers get 0 (verl: a single answer keeps its raw reward, `singleton: reward`), as do groups without trained-on tokens.
"""

from __future__ import annotations

import numpy as np

from rollbook.components.advantages.base import (
    AdvantageEstimator,
    AdvantageInputs,
    AdvantageOutputs,
)
from rollbook.components.advantages.moments import Singletons, group_sums


class Opo(Singletons, AdvantageEstimator):
    """Rewards less the mean reward of the group's tokens."""

    def __call__(self, inputs: AdvantageInputs) -> AdvantageOutputs:
        group = self.compared(inputs)
        lengths = np.where(inputs.scorable, inputs.lengths, 0).astype(np.float64)
        tokens = group_sums(lengths, inputs.groups)
        share = lengths / np.maximum(tokens, 1)
        baseline = group_sums(share * inputs.rewards, inputs.groups)
        baseline[group.spread & (group.size == 1)] = 0.0  # a single answer that keeps its reward
        signal = group.spread & inputs.scorable & (tokens > 0)
        advantages = np.zeros(len(inputs.rewards))
        advantages[signal] = inputs.rewards[signal] - baseline[signal]
        return AdvantageOutputs(advantages, group.mean, group.std, group.spread)
