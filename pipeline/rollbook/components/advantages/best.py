"""best: the best answers of each group, to be imitated; the others are left out of the update.

    A_i = 1 if i is among the `keep` best of its group and r_i ≥ min_reward, else 0

Expert iteration (arXiv 1705.08439), for language models STaR (arXiv 2203.14465), RAFT (arXiv 2304.06767), rejection
sampling fine-tuning (RFT, arXiv 2308.01825: `keep: null, distinct: true` with the reward of a right answer as
`min_reward`) and ReST-EM (arXiv 2312.06585). Against GRPO: nothing is learned from an answer that was worse, and a
prompt that is always solved weighs as much as any other. Without `min_reward` the best of a group that is wrong
throughout would be imitated too, so a group of equal rewards then gives nothing. A reward that misses `min_reward` by
rounding reaches it: 0.7 + 0.2 + 0.1 is less than 1. Answers without a reward or without tokens to train on are never
chosen; of equal rewards the first answers are taken.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import PositiveInt, model_validator

from rollbook.components.advantages.base import (
    AdvantageEstimator,
    AdvantageInputs,
    AdvantageOutputs,
    Arithmetic,
)
from rollbook.components.advantages.kl_reward import CHOOSES, refuse_penalty
from rollbook.components.advantages.moments import NOISE, any_of_group, moments_of
from rollbook.components.advantages.writing import listed, members, signed
from rollbook.components.signals import Signal
from rollbook.core.errors import ArtifactError
from rollbook.core.ragged import IntArray


class Best(AdvantageEstimator):
    """Answers that are good enough to imitate.

    Attributes:
        keep: answers of a group at most; null = all at or above `min_reward`.
        min_reward: what a reward must reach; null = none, but then the rewards of a group must differ.
        distinct: take an answer of the same text only once in a group.
    """

    makes: ClassVar[Signal] = "choices"

    keep: PositiveInt | None = 1
    min_reward: float | None = None
    distinct: bool = False

    @model_validator(mode="after")
    def _leaves_something_out(self) -> Best:
        if self.keep is None and self.min_reward is None:
            raise ValueError(
                "keep: null takes every answer at or above min_reward, and there is none; set min_reward, or keep: 1"
            )
        return self

    def cautions(self) -> list[str]:
        """See `Model.cautions`."""
        found = super().cautions()
        if self.min_reward is None and self.keep != 1:
            found.append(
                f"compute_advantages.estimator: the {self.keep} best of a group are imitated, wrong answers among them "
                "where fewer are right; set min_reward"
            )
        return found

    @property
    def needs_siblings(self) -> bool:
        """See `AdvantageEstimator.needs_siblings`: without a bound only the others say which is best."""
        return self.min_reward is None

    @property
    def needs_texts(self) -> bool:
        """See `AdvantageEstimator.needs_texts`."""
        return self.distinct

    def __call__(self, inputs: AdvantageInputs) -> AdvantageOutputs:
        """Choices of a batch.

        Raises:
            ArtifactError: if equal texts are to be left out and there are no texts.
            ConfigError: if there is a KL penalty in the rewards.
        """
        refuse_penalty(inputs, f"best {CHOOSES}")
        group = moments_of(inputs.rewards, inputs.groups, 0)
        enough = group.spread if self.min_reward is None else _reached(inputs, self.min_reward)
        chosen = np.zeros(len(inputs.rewards), bool)
        chosen[self._ranked(inputs, inputs.scorable & (inputs.lengths > 0) & enough)] = True
        informative = any_of_group(chosen, inputs.groups)
        return AdvantageOutputs(
            chosen.astype(np.float64), group.mean, group.std, informative, kept=chosen
        )

    def _ranked(self, inputs: AdvantageInputs, allowed: NDArray[np.bool_]) -> IntArray:
        """Rows to imitate, by group, the best first."""
        rows = np.flatnonzero(allowed)
        rows = rows[np.lexsort((-inputs.rewards[rows], inputs.groups[rows]))]
        if self.distinct:
            if inputs.texts is None:
                raise ArtifactError("best needs the texts of the rollouts, and there are none")
            told_apart = np.column_stack([inputs.groups[rows], inputs.texts[rows]])
            rows = rows[np.sort(np.unique(told_apart, axis=0, return_index=True)[1])]
        labels = inputs.groups[rows]
        place = np.arange(len(rows)) - np.searchsorted(labels, labels)
        return rows if self.keep is None else rows[place < self.keep]

    def arithmetic(self, inputs: AdvantageInputs, row: int) -> Arithmetic:
        """See `AdvantageEstimator.arithmetic`."""
        chosen = bool(self(inputs).advantages[row])
        bound = "" if self.min_reward is None else f" at or above {self.min_reward:g}"
        wanted = "all" if self.keep is None else f"{self.keep} best"
        said = f"chosen are the {wanted}{bound} of {listed(members(inputs, row))}"
        if not chosen:
            return [said, "it is not among them: A = 0"], 0.0
        return [said, f"it is among them: A = {signed(1.0)}"], 1.0


def _reached(inputs: AdvantageInputs, bound: float) -> NDArray[np.bool_]:
    """[B] rewards at or above a bound, or below it by rounding alone."""
    return inputs.rewards >= bound - NOISE * abs(bound)
