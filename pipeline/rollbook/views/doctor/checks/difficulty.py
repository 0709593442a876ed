"""difficulty: prompts that the policy always solves, or never.

A group whose answers all have the highest reward of the run, or all the lowest, has advantages of 0. One answer alone
says nothing of its prompt, so groups of one do not count: of PPO with one answer to a prompt nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rollbook.core.component import Share
from rollbook.rl.evaluation import Estimate
from rollbook.views.doctor.chain import ChainReading
from rollbook.views.doctor.checks.base import Check, change_of, slower, written
from rollbook.views.doctor.finding import Change, Finding
from rollbook.views.doctor.iteration import Reading
from rollbook.views.doctor.rollouts import Rollouts
from rollbook.views.doctor.statistics import mean_of


@dataclass(frozen=True)
class _Flat:
    """Groups of an iteration that all have the same reward, at one end of the rewards of the run."""

    reading: Reading
    share: Estimate
    groups: int
    example: str


class Difficulty(Check):
    """Too many prompts that are always, or never, solved.

    Attributes:
        easy: share of groups that have nothing but the highest reward; the shipped params.yaml comes to 0.48 after six
            iterations, at a mean reward of 0.9 (seeds 0 to 2). Where this comes with training it is a note.
        hard: share of groups that have nothing but the lowest reward; the base policy of the shipped params.yaml has
            0.05.
    """

    easy: Share = 0.6
    hard: Share = 0.6

    def __call__(self, run: ChainReading) -> Iterator[Finding]:
        if run.reward_range is None:
            return
        lowest, highest = run.reward_range
        solved = [_flat(*each, highest) for each in run.scored]
        yield from self._easy([each for each in solved if each.share.low > self.easy], run)
        hopeless = [_flat(*each, lowest) for each in run.scored]
        yield from self._hard([each for each in hopeless if each.share.low > self.hard], run)

    def _easy(self, found: Sequence[_Flat], run: ChainReading) -> Iterator[Finding]:
        if not found:
            return
        from_the_start = found[0].reading is run.scored[0][0]
        last = found[-1]
        cause = (
            "the prompts were too easy before any training"
            if from_the_start
            else "the policy has learned what these prompts can teach"
        )
        yield self.finding(
            "warning" if from_the_start else "note",
            [each.reading for each in found],
            f"{last.share.mean:.0%} of prompts are solved by every answer",
            [_evidence(each, "highest") for each in found[-4:]],
            cause,
            Change("data.train", written(run.params.data.train), "harder prompts"),
        )

    def _hard(self, found: Sequence[_Flat], run: ChainReading) -> Iterator[Finding]:
        if not found:
            return
        last = found[-1]
        from_the_start = found[0].reading is run.scored[0][0]
        yield self.finding(
            "warning",
            [each.reading for each in found],
            f"{last.share.mean:.0%} of prompts are solved by no answer",
            [_evidence(each, "lowest") for each in found[-4:]],
            "the prompts are too hard for this policy, or the reward does not recognise right answers "
            "(`rollbook probe` tells)"
            if from_the_start
            else "training has broken what the policy could do before",
            change_of(
                last.reading,
                "generate_rollouts.group_size",
                2 * last.reading.recipe.generate_rollouts.group_size,
            )
            if from_the_start
            else slower(last.reading, 3),
        )


def _flat(reading: Reading, rollouts: Rollouts, end: float) -> _Flat:
    group = rollouts.by_group
    first = rollouts.first_of_group[group.count[rollouts.first_of_group] > 1]
    flat = ~group.spread[first] & np.isclose(group.mean[first], end)
    example = rollouts.group_ids[rollouts.groups[first[flat.argmax()]]] if flat.any() else ""
    return _Flat(reading, mean_of(flat.astype(np.float64)), len(first), example)


def _evidence(each: _Flat, end: str) -> str:
    return (
        f"{each.reading.name}: {each.share.text('.0%', share=True)} of {each.groups} groups have the {end} "
        f"reward in every answer, such as {each.example}"
    )
