"""gae: generalised advantage estimation with the values of a critic, the advantage of PPO.

    δ[i,t] = r[i,t] + gamma · V[i,t+1] − V[i,t]        r: the reward on the last token, less each token's KL penalty
    A[i,t] = δ[i,t] + gamma · lam · A[i,t+1]           then whitened: (A − mean(A)) / sqrt(var(A) + 1e-8)
    returns[i,t] = A[i,t] + V[i,t], of A before whitening: what a value loss regresses on

GAE, arXiv 1506.02438 eq. 16; PPO, arXiv 1707.06347; verl `gae` and its defaults. Against GRPO: the baseline is learned
and stands at every token, and no group is needed. After the last token V is 0, also where a completion was cut off at
the limit: nothing is bootstrapped, as in verl. Masked tokens inside a completion are skipped: V[i,t+1] and A[i,t+1] are
those of the next trained-on token. Rows without a reward get 0 and are left out of mean and variance, and have no
returns.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from rollbook.components.advantages.base import (
    AdvantageEstimator,
    AdvantageInputs,
    AdvantageOutputs,
)
from rollbook.components.advantages.moments import moments_of
from rollbook.components.advantages.per_token import (
    discounted_sums,
    next_trained,
    token_outputs,
    whitened,
)
from rollbook.core.errors import ArtifactError
from rollbook.core.ragged import Ragged


class Gae(AdvantageEstimator):
    """Advantages from a critic.

    Attributes:
        gamma: what a reward is worth one token earlier.
        lam: 0 trusts the next value, 1 the rewards to come.
        whiten: whether advantages are brought to mean 0 and deviation 1 over the tokens of the batch.
    """

    needs_siblings: ClassVar[bool] = False
    needs_values: ClassVar[bool] = True

    gamma: Annotated[float, Field(ge=0, le=1)] = 1.0
    lam: Annotated[float, Field(ge=0, le=1)] = 1.0
    whiten: bool = True

    def __call__(self, inputs: AdvantageInputs) -> AdvantageOutputs:
        """Advantages of a batch.

        Raises:
            ArtifactError: if there are no values.
        """
        tokens = self.raw(inputs)
        if self.whiten:
            tokens = whitened(tokens, inputs.loss_mask, inputs.scorable)
        group = moments_of(inputs.rewards, inputs.groups, 0)
        returns = self.returns(inputs)
        scorable = inputs.scorable[returns.row_of]
        taught = Ragged(np.where(scorable, returns.values, np.nan), returns.lengths)
        return replace(token_outputs(inputs, tokens, group), returns=taught)

    def raw(self, inputs: AdvantageInputs) -> Ragged:
        """Per completion token: the advantage before whitening, 0 where masked and in rows without a reward.

        Raises:
            ArtifactError: if there are no values.
        """
        values, mask = _values_of(inputs), inputs.loss_mask
        following = next_trained(values, mask)
        deltas = inputs.token_rewards.values + self.gamma * following.values - values.values
        deltas = np.where(inputs.scorable[mask.row_of], deltas, 0.0)
        return discounted_sums(Ragged(deltas, mask.lengths), mask, self.gamma * self.lam)

    def returns(self, inputs: AdvantageInputs) -> Ragged:
        """Per completion token: what the critic should have said, 0 where masked.

        Raises:
            ArtifactError: if there are no values.
        """
        values, mask = _values_of(inputs), inputs.loss_mask
        returns = np.where(mask.values, self.raw(inputs).values + values.values, 0.0)
        return Ragged(returns, mask.lengths)


def _values_of(inputs: AdvantageInputs) -> Ragged:
    if inputs.values is None:
        raise ArtifactError(
            "gae needs the values of a critic, and there are none",
            "choose an estimator that needs none, such as group",
        )
    return inputs.values
