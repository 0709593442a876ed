"""engine_mismatch: the engine's log-probs are not those of the trainer for the same tokens.

Ratios are then far from 1 before the first step. ℓ_old − ℓ_samp is measured over trained-on tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import PositiveFloat

from pipeline.doctor.checks.base import Check, change_of
from pipeline.doctor.finding import Change, Finding
from pipeline.doctor.iteration import Reading
from pipeline.doctor.readings import Readings

NAME = "sampling/sampling_logp_difference/mean"
HIGHEST = "sampling/sampling_logp_difference/max"


class EngineMismatch(Check):
    """Engine and trainer that disagree about the policy.

    Attributes:
        limit: mean absolute difference of log-probs, nats per token; bfloat16 has steps of 0.125 for logits of 16
            to 32, so that rounding alone makes 0.06 there; the shipped params.yaml has 3e-7.
        serious: difference from which on no rounding explains it: other weights, another temperature, other tokens.
    """

    limit: PositiveFloat = 0.05
    serious: PositiveFloat = 0.5

    def __call__(self, run: Readings) -> Iterator[Finding]:
        # With top_p and the like the engine's numbers are renormalised, and differ rightly.
        measured = [
            each for each in run.having(NAME) if not each.recipe.generate_rollouts.truncates
        ]
        found = [each for each in measured if each.metrics[NAME] > self.limit]
        if not found:
            return
        worst = max(each.metrics[NAME] for each in found)
        corrected = found[-1].recipe.rollout_correction is not None
        yield self.finding(
            "serious" if worst > self.serious or not corrected else "warning",
            found,
            f"engine and trainer differ by {worst:.2g} nats per token",
            [
                f"{each.key}: mean {each.metrics[NAME]:.3g}, highest {each.metrics.get(HIGHEST, 0):.3g}, engine "
                f"{each.recipe.generate_rollouts.engine.name}"
                for each in found[-4:]
            ],
            "the engine computes in another precision, or with other weights or another temperature, than the trainer"
            + ("" if corrected else "; nothing corrects for it"),
            _change(found[-1]),
        )


def _change(reading: Reading) -> Change:
    engine = reading.recipe.generate_rollouts.engine
    precision = getattr(engine, "dtype", "float32")
    if (
        reading.recipe.rollout_correction is None
        and reading.recipe.update_policy.rollout_correction == "off"
    ):
        return change_of(reading, "update_policy.rollout_correction", "auto")
    if precision != "float32":
        return change_of(reading, "generate_rollouts.engine.dtype", "float32")
    return change_of(reading, "update_policy.old_logprobs", "measured")
