"""process_supervision: a reward per step of an answer; each token gets those of its own and later steps.

    z_{i,j} = (r_{i,j} − mean(pool)) / (max(std(pool), std_floor) + eps)      pool: all step rewards of the group
    A[i,t] = Σ_{j: e_{i,j} ≥ t} z_{i,j}        e_{i,j}: token that ends step j of answer i

DeepSeekMath, arXiv 2402.03300 §4.1.3, which does not say which deviation; here the population's. Step rewards (1, 0)
and (0, 1) of a group become z = (1, −1) and (−1, 1), and A = 0 then −1, and 0 then 1. Against GRPO (one step that ends
with the answer): an answer with more steps weighs more in the pool, |A| grows with the steps left, and a group's
advantages do not sum to 0. Tokens after the last step get 0: the stop token belongs into the last step. Masked tokens,
pools without spread and rows without a reward get 0; missing step rewards are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from rollbook.components.advantages.base import (
    AdvantageEstimator,
    AdvantageInputs,
    AdvantageOutputs,
    Arithmetic,
    FloatArray,
)
from rollbook.components.advantages.kl_reward import READS_PARTS, refuse_penalty
from rollbook.components.advantages.moments import Ddof, Eps, moments_of
from rollbook.components.advantages.per_token import discounted_sums, token_outputs
from rollbook.components.advantages.writing import (
    WRITTEN_MEMBERS,
    bracketed,
    listed,
    number,
    signed,
)
from rollbook.core.errors import ArtifactError
from rollbook.core.ragged import IntArray, Ragged


@dataclass(frozen=True)
class Steps:
    """Steps of rollouts and the pools they were normalised in.

    Attributes:
        z: of each step; 0 where its reward is missing or its pool has no spread.
        ends: token that ends each step, in the order of `z`.
        mean, std: [B] of the step rewards of the row's group.
        spread: [B] whether they differ.
    """

    z: Ragged
    ends: IntArray
    mean: FloatArray
    std: FloatArray
    spread: NDArray[np.bool_]


class ProcessSupervision(AdvantageEstimator):
    """Sums of the normalised rewards of the steps to come.

    Attributes:
        std_ddof: 0 = population deviation, 1 = sample deviation.
        eps: added to the deviation.
        std_floor: least deviation divided by.
    """

    needs_steps: ClassVar[bool] = True
    needs_siblings: ClassVar[bool] = False
    reads_total: ClassVar[bool] = False

    std_ddof: Ddof = 0
    eps: Eps = 0.0
    std_floor: Eps = 1e-8

    def __call__(self, inputs: AdvantageInputs) -> AdvantageOutputs:
        """Advantages of a batch.

        Raises:
            ArtifactError: if there are no step rewards, or a step does not end in its completion.
            ConfigError: if there is a KL penalty in the rewards.
        """
        refuse_penalty(inputs, f"process_supervision {READS_PARTS}")
        steps = self.steps(inputs)
        mask = inputs.loss_mask
        at_ends = np.zeros(len(mask.values))
        np.add.at(at_ends, mask.starts[steps.z.row_of] + steps.ends, steps.z.values)
        everywhere = Ragged(np.ones(len(mask.values), dtype=bool), mask.lengths)
        sums = discounted_sums(Ragged(at_ends, mask.lengths), everywhere, 1.0)
        tokens = Ragged(np.where(mask.values, sums.values, 0.0), mask.lengths)
        group = moments_of(inputs.rewards, inputs.groups, self.std_ddof)
        group = replace(group, std=steps.std, spread=steps.spread)
        return token_outputs(inputs, tokens, group, group.spread)

    def steps(self, inputs: AdvantageInputs) -> Steps:
        """The normalised rewards of all steps.

        Raises:
            ArtifactError: see `__call__`.
        """
        ends, rewards = _steps_of(inputs)
        row = ends.row_of
        values = np.where(inputs.scorable[row], rewards.values, np.nan)
        # One missing value more for each rollout: one without steps belongs to a pool too.
        pool = moments_of(
            np.append(values, np.full(len(inputs.groups), np.nan)),
            np.append(inputs.groups[row], inputs.groups),
            self.std_ddof,
        )
        known = np.flatnonzero(pool.spread[: len(values)] & ~np.isnan(values))
        std = np.maximum(pool.std[known], self.std_floor) + self.eps
        z = np.zeros(len(values))
        z[known] = (values[known] - pool.mean[known]) / std
        of_rows = slice(len(values), None)
        return Steps(
            Ragged(z, ends.lengths),
            ends.values,
            pool.mean[of_rows],
            pool.std[of_rows],
            pool.spread[of_rows],
        )

    def arithmetic(self, inputs: AdvantageInputs, row: int) -> Arithmetic:
        """See `AdvantageEstimator.arithmetic`."""
        steps = self.steps(inputs)
        if not steps.spread[row]:
            return ["no step's reward differs from the others of its group: no signal, A = 0"], 0.0
        mine = steps.z.row_of == row
        z, ends = steps.z.values[mine], steps.ends[mine]
        trained = np.flatnonzero(inputs.loss_mask.values[inputs.loss_mask.row_of == row])
        if not trained.size:
            return ["it has no tokens to train on: A = 0"], 0.0
        counts = np.array([np.count_nonzero(trained <= end) for end in ends])
        value = float((z * counts).sum() / trained.size)
        terms = " + ".join(
            f"{count} · {bracketed(each)}" for count, each in zip(counts, z.tolist(), strict=True)
        )
        return [
            f"steps of its group: mean {number(float(steps.mean[row]))}, σ = {number(float(steps.std[row]))}",
            f"z of its {len(z)} steps: {listed(z.tolist())}; a token gets those of its own and later steps",
            f"A = ({terms if len(z) <= WRITTEN_MEMBERS else 'tokens · z'}) / {trained.size} = {signed(value)}, "
            "the mean over its tokens",
        ], value


def _steps_of(inputs: AdvantageInputs) -> tuple[Ragged, Ragged]:
    """Ends and rewards of the steps."""
    ends, rewards = inputs.step_ends, inputs.step_rewards
    if ends is None or rewards is None:
        raise ArtifactError(
            "process_supervision needs a reward per step, and there is none",
            "add a reward that scores steps to score_rollouts.rewards",
        )
    length = inputs.loss_mask.lengths[ends.row_of]
    outside = np.flatnonzero((ends.values < 0) | (ends.values >= length))
    if outside.size:
        place = outside[0]
        raise ArtifactError(
            f"a step of rollout {ends.row_of[place]} ends at token {ends.values[place]}, and the completion has "
            f"{length[place]}",
            "score again: run `dvc repro`",
        )
    return ends, rewards
