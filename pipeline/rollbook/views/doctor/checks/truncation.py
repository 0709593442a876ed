"""truncation: answers that are cut off at the token limit, and what they are rewarded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rollbook.core.component import Share
from rollbook.rl.evaluation import Estimate
from rollbook.views.doctor.chain import ChainReading
from rollbook.views.doctor.checks.base import Check, change_of
from rollbook.views.doctor.finding import Finding
from rollbook.views.doctor.iteration import Reading
from rollbook.views.doctor.rollouts import Rollouts
from rollbook.views.doctor.statistics import group_means, mean_of


@dataclass(frozen=True)
class _Cut:
    """Answers of an iteration that are cut off: their share, their reward above their group, and one of them."""

    reading: Reading
    rollouts: Rollouts
    share: Estimate
    lead: Estimate
    example: str


class Truncation(Check):
    """A high share of answers without an end, or such that are rewarded above those that come to one.

    Attributes:
        limit: share of rollouts; rewards of cut answers are noise that unsettles training (DAPO, arXiv 2503.14476
            §3.4), and a tenth is chosen as more than one answer in most groups of 16; the shipped params.yaml has none.
        serious: share from which on most of what is learned is how to be cut off.
        paid: share from which on they count if they are rewarded above the mean of their group, beyond the 95 %
            interval: every update then makes more of them; chosen as one answer in most iterations of 8 groups of 8.
    """

    limit: Share = 0.1
    serious: Share = 0.5
    paid: Share = 0.02

    def __call__(self, run: ChainReading) -> Iterator[Finding]:
        every = [_cut(reading, rollouts) for reading, rollouts in run.scored]
        found = [each for each in every if each.share.low > self.limit or self._is_paid(each)]
        if not found:
            return
        last = found[-1]
        limit = last.reading.recipe.generate_rollouts.max_completion_tokens
        paid = self._is_paid(last)
        yield self.finding(
            "serious" if last.share.low > self.serious else "warning",
            [each.reading for each in found],
            f"{last.share.mean:.0%} of answers are cut off at {limit} tokens"
            + (", and rewarded above their group" if paid else ""),
            [_evidence(each) for each in found[-4:]],
            _cause(paid, found[0] is every[0]),
            change_of(
                last.reading,
                "score_rollouts.rewards",
                "a further reward soft_overlong, which charges for answers that come near the limit",
            )
            if paid
            else change_of(last.reading, "generate_rollouts.max_completion_tokens", 2 * limit),
        )

    def _is_paid(self, each: _Cut) -> bool:
        return each.share.mean > self.paid and each.lead.low > 0


def _cause(paid: bool, from_the_start: bool) -> str:
    if paid:
        return "the reward pays for answers that have no end, so the policy learns to give none"
    if from_the_start:
        return "the token limit is below what the policy needs to come to an end, so their rewards are about the limit"
    return (
        "answers have grown into the token limit; a reward such as soft_overlong keeps them short"
    )


def _cut(reading: Reading, rollouts: Rollouts) -> _Cut:
    cut, groups = rollouts.truncated, rollouts.groups
    share = mean_of(group_means(cut.astype(np.float64), groups))
    lead = mean_of(group_means(rollouts.lead, groups, cut))
    example = str(rollouts.ids[int(cut.argmax())].as_py()) if cut.any() else ""
    return _Cut(reading, rollouts, share, lead, example)


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
