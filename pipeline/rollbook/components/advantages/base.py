"""The interface of an advantage estimator: rewards of groups in, advantages out. NumPy float64, no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from rollbook.components.signals import Signal
from rollbook.core.component import Component
from rollbook.core.ragged import IntArray, Ragged

FloatArray = NDArray[np.float64]
Arithmetic = tuple[list[str], float]
"""Lines that write an advantage out in numbers, and the number they come to."""


@dataclass(frozen=True)
class AdvantageInputs:
    """What an estimator may look at. `B` rollouts, `K` reward functions; NaN means missing.

    Attributes:
        rewards: [B] weighted totals less the KL penalty of the rollout, if there is one; NaN = unscorable.
        groups: [B] integer label of each rollout's group; members need not be contiguous.
        components: [B, K] unweighted reward of each function, without any penalty.
        weights: [K] their weights.
        loss_mask: per completion token, True = trained on.
        token_penalties: per completion token, the KL penalty that is in `rewards`; 0 where masked; None: no penalty.
        greedy_rewards: [B] reward of the greedy answer to the same prompt, or None: there is none.
        step_ends: completion token that ends each step of a rollout, ascending; None: no process rewards.
        step_rewards: reward of each of these steps.
        values: per completion token, what the critic says of it; None: no critic.
        draws: [B] a random number in [0, 1) of each rollout, from its seed; None: for no estimator that needs one.
        texts: [B] integer label of each completion's text, the same for equal texts; None likewise.
    """

    rewards: FloatArray
    groups: IntArray
    components: FloatArray
    weights: FloatArray
    loss_mask: Ragged
    token_penalties: Ragged | None = None
    greedy_rewards: FloatArray | None = None
    step_ends: Ragged | None = None
    step_rewards: Ragged | None = None
    values: Ragged | None = None
    draws: FloatArray | None = None
    texts: IntArray | None = None

    @cached_property
    def lengths(self) -> IntArray:
        """[B] trained-on tokens of each completion."""
        return self.loss_mask.counts()

    @cached_property
    def scorable(self) -> NDArray[np.bool_]:
        """[B] rows that have a reward."""
        return ~np.isnan(self.rewards)

    @cached_property
    def unpenalized(self) -> FloatArray:
        """[B] rewards without the KL penalty."""
        if self.token_penalties is None:
            return self.rewards
        return self.rewards + self.token_penalties.sums()

    @cached_property
    def token_rewards(self) -> Ragged:
        """Per completion token: the reward stands on the last trained-on token, less each token's KL penalty.

        Rows without a reward or without trained-on tokens are all 0.
        """
        mask, rows = self.loss_mask, self.loss_mask.row_of
        values = np.zeros(len(mask.values))
        scores = self.unpenalized
        if self.token_penalties is not None:
            values = values - self.token_penalties.values
        trained = np.flatnonzero(mask.values)
        last = np.full(len(scores), -1)
        last[rows[trained]] = trained  # the last assignment stands
        scored = (last >= 0) & self.scorable
        values[last[scored]] += scores[scored]
        values[~self.scorable[rows]] = 0.0
        return Ragged(values, mask.lengths)


@dataclass(frozen=True)
class AdvantageOutputs:
    """Advantages and what they were computed from, all [B].

    Attributes:
        advantages: 0 for rows that carry no signal; never NaN. With `token_advantages` their mean over the row's
            trained-on tokens.
        group_mean: mean reward of the row's group; NaN where a group has no scorable member.
        group_std: the deviation it was divided by, without eps, or would have been; NaN where undefined.
        informative: whether the row's group carries a signal: its rewards have any spread, or, for an estimator that
            needs no siblings, some member is compared with something else.
        token_advantages: per completion token, 0 where masked; None: every token has its row's advantage.
        pairs: [P, 2] rows of a chosen and a rejected rollout; None: the estimator makes none.
        kept: rows that the update is to train on; None: the estimator leaves none out.
        returns: per completion token, what a critic should have said, 0 where masked, NaN in rows without a reward;
            None: the estimator does not read values.
    """

    advantages: FloatArray
    group_mean: FloatArray
    group_std: FloatArray
    informative: NDArray[np.bool_]
    token_advantages: Ragged | None = None
    pairs: IntArray | None = None
    kept: NDArray[np.bool_] | None = None
    returns: Ragged | None = None


class AdvantageEstimator(Component):
    """Turns the rewards of groups into advantages; see the file of each for formula and source."""

    kind: ClassVar[str] = "advantages"
    makes: ClassVar[Signal] = "advantages"
    """What it hands to the loss. What chooses rollouts sets `kept`, and `pairs` if it makes pairs."""
    needs_greedy: ClassVar[bool] = False
    """Whether it reads `greedy_rewards`."""
    needs_steps: ClassVar[bool] = False
    """Whether it reads `step_ends` and `step_rewards`."""
    reads_total: ClassVar[bool] = True
    """Whether the total reward, with a KL penalty or a clip in it, reaches its advantages."""
    needs_values: ClassVar[bool] = False
    """Whether it reads `values`."""

    @property
    def needs_siblings(self) -> bool:
        """Whether an answer is compared with others of its group: a group of equal rewards then carries no signal."""
        return True

    @property
    def needs_draws(self) -> bool:
        """Whether it reads `draws`."""
        return False

    @property
    def needs_texts(self) -> bool:
        """Whether it reads `texts`."""
        return False

    def __call__(self, inputs: AdvantageInputs) -> AdvantageOutputs:
        raise NotImplementedError

    def arithmetic(self, inputs: AdvantageInputs, row: int) -> Arithmetic:  # noqa: ARG002
        """How one advantage is computed, in numbers, for people to read.

        It is shown only if it comes to the advantage that the estimator gave. Where tokens have advantages of their
        own, it is about their mean.

        Args:
            inputs: of the call.
            row: of the rollout; it has a reward.

        Returns:
            Lines, and the number they come to; no lines where the formula is too long for that.
        """
        return [], math.nan
