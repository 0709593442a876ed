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
    Arithmetic,
)
from rollbook.components.advantages.moments import Singletons, group_sums, moments_of
from rollbook.components.advantages.writing import (
    WRITTEN_MEMBERS,
    bracketed,
    no_signal,
    number,
    signed,
)


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

    def arithmetic(self, inputs: AdvantageInputs, row: int) -> Arithmetic:
        """See `AdvantageEstimator.arithmetic`."""
        group = moments_of(inputs.rewards, inputs.groups, 0)
        if not group.spread[row]:
            return no_signal(inputs, row)
        mine = (inputs.groups == inputs.groups[row]) & inputs.scorable
        lengths, rewards = inputs.lengths[mine], inputs.rewards[mine]
        total = int(lengths.sum())
        if not total:
            return ["no answer of the group has tokens to train on: A = 0"], 0.0
        baseline = float((lengths * rewards).sum() / total)
        value = float(inputs.rewards[row]) - baseline
        terms = " + ".join(f"{n} · {number(r)}" for n, r in zip(lengths, rewards, strict=True))
        shown = terms if len(rewards) <= WRITTEN_MEMBERS else "tokens · reward"
        return [
            f"mean reward of the group's tokens = ({shown}) / {total} = {number(baseline)}",
            f"A = {number(float(inputs.rewards[row]))} − {bracketed(baseline)} = {signed(value)}",
        ], value
