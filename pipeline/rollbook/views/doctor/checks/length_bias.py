"""length_bias: wrong answers grow and right ones do not.

With the aggregation `row_mean` every rollout weighs the same, so a token of a long wrong answer is punished less than
one of a short one: −A / n_i (Dr. GRPO, arXiv 2503.20783 §3.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from pydantic import PositiveFloat

from rollbook.project.ancestry import span
from rollbook.rl.evaluation import Estimate
from rollbook.views.doctor.chain import ChainReading
from rollbook.views.doctor.checks.base import Check, change_of
from rollbook.views.doctor.finding import Change, Finding
from rollbook.views.doctor.iteration import Reading
from rollbook.views.doctor.rollouts import Rollouts
from rollbook.views.doctor.statistics import difference, first_and_last, group_means, mean_of


class LengthBias(Check):
    """Growth of the answers that did worse than their group.

    Attributes:
        growth: by which share they must be longer in the last third of the chain than in the first, and by more than
            right ones grew; the shipped params.yaml stays within 0.02 (seeds 0 to 2), ten times less.
    """

    growth: PositiveFloat = 0.2

    def __call__(self, run: ChainReading) -> Iterator[Finding]:
        parts = first_and_last(run.scored)
        if not parts[0]:
            return
        wrong, right = ([_lengths(part, better) for part in parts] for better in (False, True))
        grown, others = difference(*wrong), difference(*right)
        if not (grown.low > self.growth * wrong[0].mean and difference(others, grown).low > 0):
            return
        readings = [reading for reading, _ in run.scored]
        last = readings[-1]
        yield self.finding(
            "warning",
            readings,
            f"answers that did worse than their group grew from {wrong[0].mean:.3g} to {wrong[1].mean:.3g} tokens",
            [
                *(
                    f"{span([reading.key for reading, _ in part])}: worse than their group {of_wrong.mean:.3g} tokens, "
                    f"better {of_right.mean:.3g}; the longest of the worse is {_longest(part[-1][1])}"
                    for part, of_wrong, of_right in zip(parts, wrong, right, strict=True)
                ),
                f"growth {grown.text('+.3g')}, of the better {others.text('+.3g')} (95 %, by prompt)",
            ],
            _cause(last),
            _change(last),
        )


def _lengths(part: Sequence[tuple[Reading, Rollouts]], better: bool) -> Estimate:
    """Tokens of answers above, or below, the mean of their group: means by group."""
    found = []
    for _, rollouts in part:
        where = rollouts.lead > 0 if better else rollouts.lead < 0
        where &= rollouts.by_group.spread
        found.append(group_means(rollouts.lengths.astype(np.float64), rollouts.groups, where))
    return mean_of(np.concatenate(found))


def _longest(rollouts: Rollouts) -> str:
    worse = (rollouts.lead < 0) & rollouts.by_group.spread
    return str(rollouts.ids[int(np.where(worse, rollouts.lengths, -1).argmax())].as_py())


def _cause(reading: Reading) -> str:
    loss = reading.recipe.update_policy.loss
    if loss.aggregation == "row_mean":
        return (
            f"loss {loss.name} takes means over rollouts (row_mean), so each token of a long wrong answer is punished "
            "less"
        )
    return (
        f"loss {loss.name} ({loss.aggregation}) weighs tokens alike, so this is not the loss: look at what the reward "
        "says of long answers"
    )


def _change(reading: Reading) -> Change:
    if reading.recipe.update_policy.loss.aggregation == "row_mean":
        return change_of(reading, "update_policy.loss.aggregation", "token_mean")
    return change_of(
        reading,
        "score_rollouts.rewards",
        "a further reward soft_overlong, which charges for length",
    )
