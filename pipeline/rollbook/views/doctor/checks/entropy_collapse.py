"""entropy_collapse: the policy has become sure of itself without having become right."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rollbook.core.component import Share
from rollbook.views.doctor.chain import ChainReading
from rollbook.views.doctor.checks.base import Check, change_of, slower
from rollbook.views.doctor.finding import Change, Finding
from rollbook.views.doctor.iteration import Reading

CLIP_HIGH = 0.28


class EntropyCollapse(Check):
    """Entropy that is nearly gone while rewards are not at their top.

    Attributes:
        share: of the first iteration's entropy that must be left; the shipped params.yaml keeps 0.26 to 0.31 at a mean
            reward of 0.9 (seeds 0 to 2), a third of that is gone.
        solved: place of the mean reward between the lowest and the highest of the run from which on little entropy is
            right: there is one right answer, and the policy knows it.
    """

    share: Share = 0.1
    solved: Share = 0.85

    def __call__(self, run: ChainReading) -> Iterator[Finding]:
        measured = [each for each in run.having("entropy") if each.rollouts is not None]
        if len(measured) < 2 or run.reward_range is None:
            return
        start = measured[0].metrics["entropy"]
        lowest, highest = run.reward_range
        limit = lowest + self.solved * (highest - lowest)
        found = [
            each
            for each in measured[1:]
            if each.metrics["entropy"] < self.share * start and _reward(each) < limit
        ]
        if not found:
            return
        last = found[-1]
        yield self.finding(
            "serious" if last is measured[-1] else "warning",
            found,
            f"entropy fell from {start:.2g} to {last.metrics['entropy']:.2g} nats per token, at a mean reward of "
            f"{_reward(last):.2g}",
            [
                f"{each.key}: entropy {each.metrics['entropy']:.2g}, mean reward {_reward(each):.3g}"
                for each in [measured[0], *found[-3:]]
            ],
            "answers of a group are nearly all the same, so nothing better can be found any more",
            _change(last),
        )


def _reward(reading: Reading) -> float:
    """Mean of an iteration; NaN, which is below no limit, where it has none."""
    return math.nan if reading.rollouts is None else reading.rollouts.mean_reward


def _change(reading: Reading) -> Change:
    """Clip-higher, which lets unlikely tokens gain (DAPO); where it is on, smaller steps."""
    loss = reading.recipe.update_policy.loss
    if getattr(loss, "clip_high", CLIP_HIGH) < CLIP_HIGH and loss.ratio == "token":
        return change_of(reading, "update_policy.loss.clip_high", CLIP_HIGH)
    return slower(reading, 3)
