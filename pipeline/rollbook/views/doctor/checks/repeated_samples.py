"""repeated_samples: an engine that gives the same answer more often than its own log-probs allow.

    E[share of equal pairs] = Σ_y π(y)² = E[π(y)]

The mean probability of the sampled answers says how many pairs of them should be equal. More than that are not drawn
independently: the engine repeats its random numbers, or answers from a cache.
"""

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
class _Repeats:
    """Equal pairs of an iteration's answers, what their likelihood makes of them, the difference by group, and the
    group where it is largest."""

    reading: Reading
    same: float
    expected: float
    excess: Estimate
    example: str


class RepeatedSamples(Check):
    """Answers of a group that are not independent of each other.

    Attributes:
        margin: by how much the share of equal pairs may exceed the mean probability of the answers; the shipped
            params.yaml stays within 0.013 (seeds 0 to 2, 18 iterations); it counts beyond the 95 % interval.
    """

    margin: Share = 0.05

    def __call__(self, run: ChainReading) -> Iterator[Finding]:
        every = [_repeats(reading, rollouts) for reading, rollouts in run.scored]
        found = [each for each in every if each is not None and each.excess.low > self.margin]
        if not found:
            return
        last = found[-1]
        yield self.finding(
            "serious",
            [each.reading for each in found],
            f"{last.same:.0%} of pairs of answers are equal where their probabilities account for {last.expected:.0%}",
            [_evidence(each) for each in found[-4:]],
            "the engine does not draw answers independently: the same random numbers, or a cache, serve several",
            change_of(
                last.reading,
                "generate_rollouts.engine",
                "another engine, to see whether it is the fault",
            ),
        )


def _repeats(reading: Reading, rollouts: Rollouts) -> _Repeats | None:
    same = rollouts.same_pairs
    known = ~np.isnan(same)
    if not known.any():
        return None
    expected = group_means(rollouts.likelihoods, rollouts.groups)
    excess = same - expected
    return _Repeats(
        reading,
        float(same[known].mean()),
        float(expected[known].mean()),
        mean_of(excess[known]),
        rollouts.group_ids[int(np.nanargmax(excess))],
    )


def _evidence(each: _Repeats) -> str:
    return (
        f"{each.reading.name}: {each.same:.1%} of pairs are equal, {each.expected:.1%} expected, "
        f"{each.excess.text('+.1%')} by group; such as {each.example}"
    )
