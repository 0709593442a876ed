"""remax: rewards relative to that of the greedy answer to the same prompt.

    A[i,t] = Σ_{s≥t} r[i,s] − r_greedy        r[i,s]: the reward on the last token, less each token's KL penalty
    A_i = r_i − r_greedy                      the same for every token if there is no penalty

ReMax, arXiv 2310.10505; verl `remax`. Against GRPO: the baseline is a reward of the policy's most likely
answer, not a mean over the group, so one sampled answer per prompt is enough; nothing is divided by σ. A prompt whose
answers are all right while the greedy one is wrong still gives signal. Rows without a reward, or whose greedy answer
has none, get 0, as do rewards that equal the greedy one up to rounding.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from rollbook.components.advantages.base import (
    AdvantageEstimator,
    AdvantageInputs,
    AdvantageOutputs,
    Arithmetic,
)
from rollbook.components.advantages.moments import NOISE, any_of_group, moments_of
from rollbook.components.advantages.per_token import discounted_sums, token_outputs
from rollbook.components.advantages.writing import bracketed, number, signed
from rollbook.core.errors import ArtifactError
from rollbook.core.ragged import Ragged


class Remax(AdvantageEstimator):
    """Rewards less that of the greedy answer."""

    needs_greedy: ClassVar[bool] = True
    needs_siblings: ClassVar[bool] = False

    def __call__(self, inputs: AdvantageInputs) -> AdvantageOutputs:
        """Advantages of a batch.

        Raises:
            ArtifactError: if there are no greedy answers.
        """
        greedy = inputs.greedy_rewards
        if greedy is None:
            raise ArtifactError(
                "remax needs the reward of a greedy answer to each prompt, and there is none",
                "set generate_rollouts.greedy to true and run the iteration again",
            )
        group = moments_of(inputs.rewards, inputs.groups, 0)
        known = inputs.scorable & ~np.isnan(greedy)
        differs = known & ~np.isclose(inputs.unpenalized, greedy, rtol=NOISE, atol=0.0)
        informative = any_of_group(differs, inputs.groups)
        if inputs.token_penalties is None:
            advantages = np.zeros(len(inputs.rewards))
            advantages[differs] = inputs.rewards[differs] - greedy[differs]
            return AdvantageOutputs(advantages, group.mean, group.std, informative)
        mask = inputs.loss_mask
        returns = discounted_sums(inputs.token_rewards, mask, 1.0)
        counted = mask.values & known[mask.row_of]
        tokens = np.where(counted, returns.values - greedy[mask.row_of], 0.0)
        return token_outputs(inputs, Ragged(tokens, mask.lengths), group, informative)

    def arithmetic(self, inputs: AdvantageInputs, row: int) -> Arithmetic:
        """See `AdvantageEstimator.arithmetic`."""
        if inputs.greedy_rewards is None or inputs.token_penalties is not None:
            return [], math.nan
        reward, greedy = float(inputs.rewards[row]), float(inputs.greedy_rewards[row])
        if math.isnan(greedy):
            return ["the greedy answer has no reward: nothing to compare with, A = 0"], 0.0
        value = reward - greedy
        return [
            f"the greedy answer to the same prompt has {number(greedy)}",
            f"A = {number(reward)} − {bracketed(greedy)} = {signed(value)}",
        ], value
