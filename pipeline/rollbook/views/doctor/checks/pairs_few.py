"""pairs_few: few groups make a pair of a better and a worse answer, so most answers are generated for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rollbook.core.component import Share
from rollbook.rl.evaluation import Estimate
from rollbook.views.doctor.chain import ChainReading
from rollbook.views.doctor.checks.base import Check, change_of, rounded
from rollbook.views.doctor.finding import Change, Finding
from rollbook.views.doctor.iteration import Reading
from rollbook.views.doctor.rollouts import Rollouts
from rollbook.views.doctor.statistics import mean_of

LARGER, SMALLER = 2, 2.0


@dataclass(frozen=True)
class _Paired:
    """Groups of an iteration that make a pair, and those whose rewards differ at all."""

    reading: Reading
    share: Estimate
    differing: float
    groups: int


class PairsFew(Check):
    """Too few groups with a pair.

    Attributes:
        least: share of groups that should make one; the shipped params.yaml, whose rewards are 0 or 1, still has 0.5
            after six iterations, at a mean reward of 0.9. Below 0.2 four answers of five are thrown away.
    """

    least: Share = 0.2

    def __call__(self, run: ChainReading) -> Iterator[Finding]:
        every = [_paired(*each) for each in run.scored if _makes_pairs(*each)]
        found = [each for each in every if each.share.high < self.least]
        if not found:
            return
        last = found[-1]
        held_back = last.differing >= 2 * last.share.mean and _min_gap(last.reading) > 0
        yield self.finding(
            "warning",
            [each.reading for each in found],
            f"{last.share.mean:.0%} of groups make a pair",
            [_evidence(each) for each in found[-4:]],
            "min_gap leaves out most pairs"
            if held_back
            else "the answers to a prompt are all right or all wrong, and then none is better",
            _change(last.reading, held_back),
        )


def _makes_pairs(reading: Reading, rollouts: Rollouts) -> bool:
    estimator = reading.recipe.compute_advantages.estimator
    return estimator.makes == "pairs" and rollouts.advantages is not None


def _paired(reading: Reading, rollouts: Rollouts) -> _Paired:
    assert rollouts.advantages is not None
    groups = len(rollouts.group_ids)
    # Of a group that makes a pair at least its best answer has an advantage: it is never rejected.
    made = np.bincount(rollouts.groups, np.nan_to_num(rollouts.advantages) != 0, groups) > 0
    differing = rollouts.by_group.spread[rollouts.first_of_group]
    return _Paired(reading, mean_of(made.astype(np.float64)), float(differing.mean()), groups)


def _min_gap(reading: Reading) -> float:
    return float(getattr(reading.recipe.compute_advantages.estimator, "min_gap", 0.0))


def _evidence(each: _Paired) -> str:
    share = each.share
    return (
        f"{each.reading.name}: {share.mean:.0%} [{max(share.low, 0):.0%}, {share.high:.0%}] of {each.groups} groups "
        f"make a pair, in {each.differing:.0%} rewards differ"
    )


def _change(reading: Reading, held_back: bool) -> Change:
    if held_back:
        smaller = rounded(_min_gap(reading) / SMALLER)
        return change_of(reading, "compute_advantages.estimator.min_gap", smaller)
    if reading.recipe.prepare_prompts.prefer == "any":
        return change_of(reading, "prepare_prompts.prefer", "informative")
    size = LARGER * reading.recipe.generate_rollouts.group_size
    return change_of(reading, "generate_rollouts.group_size", size)
