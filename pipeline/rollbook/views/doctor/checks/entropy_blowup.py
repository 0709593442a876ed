"""entropy_blowup: the policy becomes more random as it trains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from pydantic import PositiveFloat

from rollbook.components.coefficients import AdaptiveEntropy
from rollbook.views.doctor.chain import ChainReading
from rollbook.views.doctor.checks.base import Check, change_of, rounded, slower
from rollbook.views.doctor.finding import Change, Finding
from rollbook.views.doctor.iteration import Reading
from rollbook.views.doctor.statistics import without_nan


class EntropyBlowup(Check):
    """Entropy far above that of the first iteration.

    Attributes:
        factor: times the first iteration's entropy; training on right and wrong answers lowers it, to 0.3 of the first
            in six iterations of the shipped params.yaml, so half more than at first is the wrong way.
        rise: nats per token it must have risen by as well, since a policy that is sure of itself may double from near
            0.
    """

    factor: PositiveFloat = 1.5
    rise: PositiveFloat = 0.3

    def __call__(self, run: ChainReading) -> Iterator[Finding]:
        measured = run.having("entropy")
        if len(measured) < 2:
            return
        start = measured[0].metrics["entropy"]
        limit = max(self.factor * start, start + self.rise)
        found = [each for each in measured if each.metrics["entropy"] > limit]
        if not found:
            return
        last = found[-1]
        cause, change = _why(found, start)
        yield self.finding(
            "serious" if last is measured[-1] else "warning",
            found,
            f"entropy rose from {start:.2g} to {last.metrics['entropy']:.2g} nats per token",
            [
                f"{each.key}: {each.metrics['entropy']:.3g} nats per token"
                for each in [measured[0], *found[-3:]]
            ],
            cause,
            change,
        )


def _why(found: Sequence[Reading], start: float) -> tuple[str, Change]:
    """The bonus, if one was in use in these iterations, or steps that are too large; and what to change.

    Args:
        found: iterations whose entropy is too high.
        start: entropy of the first iteration, nats per token.
    """
    last, place = found[-1], "update_policy.loss.entropy_coef"
    setting = last.recipe.update_policy.loss.entropy_coef
    outweighs = "the entropy bonus outweighs the reward"
    too_large = "steps are so large that they break what the policy knew"
    if not isinstance(setting, AdaptiveEntropy):
        if setting:
            return outweighs, change_of(last, place, rounded(setting / 10))
        return too_large, slower(last, 10)
    # One that follows a target is 0 in every step above it: only the steps say whether it was in use.
    stored = [each.steps["entropy_coef"] for each in found if "entropy_coef" in each.steps]
    used = without_nan(np.concatenate([*stored, np.empty(0)]))
    if used.any():
        return outweighs, _weaker(last, place, setting, float(used.max()), start)
    if len(stored) == len(found):
        return too_large, slower(last, 10)
    either = f"{too_large}, or {outweighs}: optimizer steps, which are not on disk, would tell"
    return either, change_of(last, place, "a lower target, if it was above 0 in these iterations")


def _weaker(
    reading: Reading, place: str, setting: AdaptiveEntropy, used: float, start: float
) -> Change:
    """A lower bound for a coefficient that has grown; a lower target where it must start so high, or seeks more."""
    highest = max(rounded(used / 10), setting.start)
    if setting.target <= start and highest < setting.max:
        return change_of(reading, f"{place}.max", highest)
    return change_of(reading, f"{place}.target", rounded(min(setting.target, start) / 2))
