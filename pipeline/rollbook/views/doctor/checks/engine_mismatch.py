"""engine_mismatch: the engine's log-probs are not those of the trainer for the same tokens.

Ratios are then far from 1 before the first step. ℓ_old − ℓ_samp is measured over trained-on tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import PositiveFloat

from rollbook.views.doctor.chain import ChainReading
from rollbook.views.doctor.checks.base import Check, change_of
from rollbook.views.doctor.finding import Change, Finding
from rollbook.views.doctor.iteration import Reading

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

    def __call__(self, run: ChainReading) -> Iterator[Finding]:
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
            [_evidence(each) for each in found[-4:]],
            "the engine computes in another precision, or with other weights or another temperature, than the trainer"
            + ("" if corrected else "; nothing corrects for it"),
            _change(found[-1]),
        )


def _evidence(reading: Reading) -> str:
    said = f"{reading.key}: mean {reading.metrics[NAME]:.3g}"
    if HIGHEST in reading.metrics:
        said += f", highest {reading.metrics[HIGHEST]:.3g}"
    return f"{said}, engine {reading.recipe.generate_rollouts.engine.name}"


def _change(reading: Reading) -> Change:
    """What is not done yet of: a correction, an engine as exact as the trainer, ratios to measured log-probs."""
    update, engine = reading.recipe.update_policy, reading.recipe.generate_rollouts.engine
    measured = update.old_logprobs == "measured"
    if update.rollout_correction == "off" and measured:
        return change_of(reading, "update_policy.rollout_correction", "auto")
    if getattr(engine, "dtype", "float32") != "float32":
        return change_of(reading, "generate_rollouts.engine.dtype", "float32")
    if not measured:
        return change_of(reading, "update_policy.old_logprobs", "measured")
    return change_of(
        reading, "generate_rollouts.engine", "another engine, to see whether it is the fault"
    )
