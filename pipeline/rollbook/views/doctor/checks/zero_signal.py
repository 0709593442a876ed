"""zero_signal: more groups without signal than the rewards account for.

    expected = Σ_v q_v^G       q_v: share of the rewards that are v; for right and wrong answers p^G + (1 − p)^G

That is the share of groups whose G rewards are all equal if every prompt were as hard as the average one. Prompts
differ, so the stored share is above it; far above it the prompts are of two kinds, solved ones and hopeless ones, and
most of the generation goes into groups that teach nothing. Where an answer is not compared with its siblings, as with a
critic, equal rewards teach too, and nothing is said.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from pydantic import PositiveFloat

from rollbook.core.component import Share
from rollbook.rl.evaluation import Estimate
from rollbook.views.doctor.chain import ChainReading
from rollbook.views.doctor.checks.base import Check, change_of
from rollbook.views.doctor.finding import Change, Finding
from rollbook.views.doctor.iteration import Reading
from rollbook.views.doctor.rollouts import Rollouts
from rollbook.views.doctor.statistics import mean_of

OVERSAMPLING_FACTOR = 4.0
"""Times its value that oversampling is raised at most: more is another run, and not another setting."""


@dataclass(frozen=True)
class _Silence:
    """Groups of an iteration whose rewards are all equal: their share, what was expected, and an example."""

    reading: Reading
    share: Estimate
    expected: float
    example: str
    groups: int


class ZeroSignal(Check):
    """Groups whose rewards are all equal, beyond what the mean reward accounts for.

    Attributes:
        margin: by how much the share of such groups may exceed the expected one; healthy runs of the shipped
            params.yaml exceed it by 0.11 at most (seeds 0 to 2, 18 iterations, 256 groups of 8).
        serious: share of such groups from which on the finding is serious; then nine answers of ten are thrown away.
    """

    margin: PositiveFloat = 0.25
    serious: Share = 0.9

    def __call__(self, run: ChainReading) -> Iterator[Finding]:
        every = [_silence(*each) for each in run.scored if _compares_siblings(each[0])]
        found = [each for each in every if each.share.low > each.expected + self.margin]
        if not found:
            return
        worst = max(found, key=lambda each: each.share.mean)
        yield self.finding(
            "serious" if worst.share.low > self.serious else "warning",
            [each.reading for each in found],
            f"{worst.share.mean:.0%} of groups carry no signal where their rewards account for {worst.expected:.0%}",
            [_evidence(each) for each in found[-4:]],
            "the prompts are of two kinds, those the policy always solves and those it never does, or it gives "
            "one answer to each (checks diversity and repeated_samples)",
            _change(found[-1]),
        )


def _compares_siblings(reading: Reading) -> bool:
    return reading.recipe.compute_advantages.estimator.needs_siblings


def _silence(reading: Reading, rollouts: Rollouts) -> _Silence:
    first = rollouts.first_of_group
    silent = ~rollouts.by_group.spread[first] & (rollouts.by_group.count[first] > 1)
    counts = np.unique(rollouts.known_rewards, return_counts=True)[1]
    size = max(int(rollouts.group_sizes.max(initial=1)), 1)
    expected = float(((counts / max(counts.sum(), 1)) ** size).sum())
    example = rollouts.group_ids[int(silent.argmax())] if silent.any() else ""
    return _Silence(
        reading, mean_of(silent.astype(np.float64)), expected, example, len(rollouts.group_ids)
    )


def _evidence(each: _Silence) -> str:
    return (
        f"{each.reading.name}: {each.share.text('.0%', share=True)} of {each.groups} groups have equal "
        f"rewards, {each.expected:.0%} expected; such as {each.example}"
    )


def _change(each: _Silence) -> Change:
    prompts = each.reading.recipe.prepare_prompts
    if prompts.prefer == "any":
        return change_of(each.reading, "prepare_prompts.prefer", "informative")
    wanted = math.ceil(10 * prompts.oversample / max(1 - each.share.mean, 1e-9)) / 10
    return change_of(
        each.reading,
        "prepare_prompts.oversample",
        min(wanted, OVERSAMPLING_FACTOR * prompts.oversample),
    )
