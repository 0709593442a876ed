"""reinforce_plus_plus: discounted reward-to-go of each token, whitened over all tokens of the batch.

    R[i,t] = r[i,t] + gamma · R[i,t+1]        r: the reward on the last token, less each token's KL penalty
    A[i,t] = (R[i,t] − mean(R)) / sqrt(var(R) + 1e-8)        over the trained-on tokens of all rows; sample variance

REINFORCE++, arXiv 2501.03262; verl `reinforce_plus_plus`. Against GRPO: the baseline is the mean of the batch, not of
the group, so one answer per prompt is enough, and answers to a hard prompt are all pushed down. Masked tokens inside a
completion are skipped. Rows without a reward get 0 and are left out of mean and variance; a batch of equal R gets 0.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from rollbook.components.advantages.base import (
    AdvantageEstimator,
    AdvantageInputs,
    AdvantageOutputs,
    Arithmetic,
)
from rollbook.components.advantages.moments import moments_of, whitening
from rollbook.components.advantages.per_token import discounted_sums, token_outputs, whitened
from rollbook.components.advantages.writing import bracketed, divisor, number, signed


class ReinforcePlusPlus(AdvantageEstimator):
    """Whitened rewards-to-go.

    Attributes:
        gamma: what a reward is worth one token earlier.
    """

    needs_siblings: ClassVar[bool] = False

    gamma: Annotated[float, Field(ge=0, le=1)] = 1.0

    def __call__(self, inputs: AdvantageInputs) -> AdvantageOutputs:
        group = moments_of(inputs.rewards, inputs.groups, 0)
        returns = discounted_sums(inputs.token_rewards, inputs.loss_mask, self.gamma)
        tokens = whitened(returns, inputs.loss_mask, inputs.scorable)
        return token_outputs(inputs, tokens, group)

    def arithmetic(self, inputs: AdvantageInputs, row: int) -> Arithmetic:
        """See `AdvantageEstimator.arithmetic`."""
        returns = discounted_sums(inputs.token_rewards, inputs.loss_mask, self.gamma)
        mean, factor = whitening(
            returns.values[inputs.loss_mask.values & inputs.scorable[returns.row_of]]
        )
        own = returns.values[returns.row_of == row][inputs.loss_mask.values[returns.row_of == row]]
        if not own.size:
            return ["it has no tokens to train on: A = 0"], 0.0
        average = float(own.mean())
        value = (average - mean) * factor
        return [
            f"R of its {len(own)} tokens, from the first to the last: {number(own[0])} to {number(own[-1])}, "
            f"on average {number(average)}",
            f"over all tokens of the iteration R has mean {number(mean)}",
            f"A = ({number(average)} − {bracketed(mean)}) / {divisor(factor)} = {signed(value)}, "
            "the mean over its tokens",
        ], value
