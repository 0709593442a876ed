"""stale_data: many passes over one table of rollouts, which the policy leaves behind with each."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from pydantic import PositiveInt

from rollbook.views.doctor.chain import ChainReading
from rollbook.views.doctor.checks.base import Check, change_of
from rollbook.views.doctor.finding import Finding
from rollbook.views.doctor.iteration import Reading


class StaleData(Check):
    """More epochs than rollouts stay good for.

    Attributes:
        epochs: passes over an iteration's rollouts; DeepSeekMath makes one update per table (arXiv 2402.03300
            §4.2), TRL and verl default to 1, and 4 is what users of PPO try first.
    """

    epochs: PositiveInt = 4

    def __call__(self, run: ChainReading) -> Iterator[Finding]:
        found = [
            each
            for each in run.having("optimizer_step")
            if each.recipe.update_policy.epochs > self.epochs
        ]
        if not found:
            return
        last = found[-1]
        epochs = last.recipe.update_policy.epochs
        yield self.finding(
            "warning",
            found,
            f"{epochs} epochs on each table of rollouts",
            [_evidence(each) for each in found[-4:]],
            "the later epochs train on answers that the policy would no longer give",
            change_of(last, "update_policy.epochs", 1),
        )


def _evidence(reading: Reading) -> str:
    steps = reading.steps
    said = f"{reading.key}: {reading.recipe.update_policy.epochs} epochs"
    if not steps:
        return said
    clipped, epoch = steps["clip_low"] + steps["clip_high"], steps["epoch"]
    of_ends = [clipped[epoch == each] for each in (epoch.min(), epoch.max())]
    if any(np.isnan(each).all() for each in of_ends):  # a loss that clips nothing
        return said
    first, last = map(np.nanmean, of_ends)
    return f"{said}; {first:.0%} of tokens clipped in the first, {last:.0%} in the last"
