"""truncation: answers that are cut off at the token limit, and what they are rewarded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pipeline.config import Share
from pipeline.doctor.checks.base import Check, change_of
from pipeline.doctor.finding import Finding
from pipeline.doctor.readings import Reading, Readings, Rollouts
from pipeline.doctor.statistics import group_means, mean_of
from pipeline.evaluation import Estimate


@dataclass(frozen=True)
class _Cut:
    """Share of an iteration's answers that are cut off, and an example."""

    reading: Reading
    rollouts: Rollouts
    share: Estimate
    example: str


class Truncation(Check):
    """A high share of answers without an end.

    Attributes:
        limit: share of rollouts; rewards of cut answers are noise that unsettles training (DAPO, arXiv 2503.14476
            §3.4), and a tenth is chosen as more than one answer in most groups of 16; the shipped params.yaml has none.
        serious: share from which on most of what is learned is how to be cut off.
    """

    limit: Share = 0.1
    serious: Share = 0.5

    def __call__(self, run: Readings) -> Iterator[Finding]:
        every = [_cut(reading, rollouts) for reading, rollouts in run.scored]
        found = [each for each in every if each.share.low > self.limit]
        if not found:
            return
        last = found[-1]
        limit = last.reading.recipe.generate_rollouts.max_completion_tokens
        yield self.finding(
            "serious" if last.share.low > self.serious else "warning",
            [each.reading for each in found],
            f"{last.share.mean:.0%} of answers are cut off at {limit} tokens",
            [_evidence(each) for each in found[-4:]],
            "the token limit is below what the policy needs to come to an end, so their rewards are about the limit"
            if found[0] is every[0]
            else "answers have grown into the token limit; a reward such as soft_overlong keeps them short",
            change_of(last.reading, "generate_rollouts.max_completion_tokens", 2 * limit),
        )


def _cut(reading: Reading, rollouts: Rollouts) -> _Cut:
    cut = rollouts.truncated
    share = mean_of(group_means(cut.astype(np.float64), rollouts.groups))
    example = str(rollouts.ids[int(cut.argmax())].as_py()) if cut.any() else ""
    return _Cut(reading, rollouts, share, example)


def _evidence(each: _Cut) -> str:
    rewards, cut = each.rollouts.rewards, each.rollouts.truncated
    means = [
        f"{name} {np.nanmean(rewards[rows]):.3g}"
        for name, rows in (("cut off", cut), ("ended", ~cut))
        if rows.any() and not np.isnan(rewards[rows]).all()
    ]
    return (
        f"{each.reading.name}: {each.share.mean:.0%} of {len(cut)} answers, mean reward {', '.join(means)}; such as "
        f"{each.example}"
    )
