"""pairs: answers to one prompt in pairs of a better and a worse one, for losses that compare two (DPO).

    A_i = (pairs won by i − pairs lost by i) / pairs of its group

Which pairs a group makes: the best answer against the worst (`best_worst`, arXiv 2401.12086), every two whose rewards
differ (`all`), or the best against one that is worse, drawn at random (`best_random`). DPO, arXiv 2305.18290, with
pairs of the policy's own answers instead of a collected data set, as in arXiv 2404.19733. Against GRPO: only which
answer is better counts and not by how much, and answers outside of pairs are not trained on. Answers without a reward
or without tokens to train on are in no pair; of equal rewards the first answer is taken; a group of equal rewards makes
no pair. A_i tells readers how an answer stands; the loss reads the pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np
from pydantic import NonNegativeFloat

from rollbook.components.advantages.base import (
    AdvantageEstimator,
    AdvantageInputs,
    AdvantageOutputs,
    Arithmetic,
    FloatArray,
)
from rollbook.components.advantages.kl_reward import CHOOSES, refuse_penalty
from rollbook.components.advantages.moments import (
    NOISE,
    any_of_group,
    group_sums,
    moments_of,
)
from rollbook.components.advantages.writing import listed, members, signed
from rollbook.components.signals import Signal
from rollbook.core.errors import ArtifactError
from rollbook.core.ragged import IntArray

Pairing = Literal["best_worst", "all", "best_random"]


class Pairs(AdvantageEstimator):
    """Pairs of a chosen and a rejected answer.

    Attributes:
        pairing: which pairs a group makes.
        min_gap: least difference of the two rewards; 0 takes every pair whose rewards differ.
    """

    makes: ClassVar[Signal] = "pairs"

    pairing: Pairing = "best_worst"
    min_gap: NonNegativeFloat = 0.0

    @property
    def needs_draws(self) -> bool:
        """See `AdvantageEstimator.needs_draws`."""
        return self.pairing == "best_random"

    def __call__(self, inputs: AdvantageInputs) -> AdvantageOutputs:
        """Pairs of a batch, group by group.

        Raises:
            ArtifactError: if one of a pair is to be drawn and there are no random numbers.
            ConfigError: if there is a KL penalty in the rewards.
        """
        refuse_penalty(inputs, f"pairs {CHOOSES}")
        pairs = self._pairs(inputs)
        won, lost = (np.bincount(side, minlength=len(inputs.rewards)) for side in pairs.T)
        in_pairs = won + lost > 0
        of_group = group_sums(won.astype(np.float64), inputs.groups)
        group = moments_of(inputs.rewards, inputs.groups, 0)
        return AdvantageOutputs(
            (won - lost) / np.maximum(of_group, 1),
            group.mean,
            group.std,
            any_of_group(in_pairs, inputs.groups),
            pairs=pairs,
            kept=in_pairs,
        )

    def _pairs(self, inputs: AdvantageInputs) -> IntArray:
        """[P, 2] rows of the chosen and the rejected answers, group by group."""
        draws = inputs.draws if self.needs_draws else None
        if self.needs_draws and draws is None:
            raise ArtifactError("pairs needs random numbers of the rollouts, and there are none")
        found = [
            rows[self._of_group(inputs.rewards[rows], _at(draws, rows))] for rows in _groups(inputs)
        ]
        pairs: IntArray = np.concatenate([np.empty((0, 2), np.int64), *found])
        return pairs

    def _of_group(self, rewards: FloatArray, draws: FloatArray | None) -> IntArray:
        """[P, 2] places of the chosen and the rejected answer.

        Args:
            rewards: of the members of a group, none missing.
            draws: their random numbers, where one of a pair is drawn.
        """
        gaps = rewards[:, None] - rewards
        noise = NOISE * np.abs(rewards).max()  # 0.7 − 0.2 is less than 0.5
        better = (gaps > noise) & (gaps >= self.min_gap - noise)
        if self.pairing == "all":
            return np.argwhere(better)
        best = int(rewards.argmax())
        worse = np.flatnonzero(better[best])
        if not len(worse):
            return np.empty((0, 2), np.int64)
        of_worse = rewards[worse] if draws is None else draws[worse]
        return np.array([[best, worse[of_worse.argmin()]]])

    def arithmetic(self, inputs: AdvantageInputs, row: int) -> Arithmetic:
        """See `AdvantageEstimator.arithmetic`."""
        pairs = self._pairs(inputs)
        pairs = pairs[inputs.groups[pairs[:, 0]] == inputs.groups[row]]
        if not len(pairs):
            return ["its group makes no pair of answers whose rewards differ enough: A = 0"], 0.0
        won, lost = (int((side == row).sum()) for side in pairs.T)
        value = (won - lost) / len(pairs)
        return [
            f"rewards of its group: {listed(members(inputs, row))}",
            f"of {len(pairs)} pairs it is chosen in {won} and rejected in {lost}",
            f"A = ({won} − {lost}) / {len(pairs)} = {signed(value)}",
        ], value


def _groups(inputs: AdvantageInputs) -> Iterator[IntArray]:
    """Rows of each group that may be in a pair, in their order."""
    rows = np.flatnonzero(inputs.scorable & (inputs.lengths > 0))
    labels = inputs.groups[rows]
    order = np.argsort(labels, kind="stable")
    ends = np.flatnonzero(np.diff(labels[order])) + 1
    yield from (part for part in np.split(rows[order], ends) if len(part))


def _at(draws: FloatArray | None, members: IntArray) -> FloatArray | None:
    return None if draws is None else draws[members]
