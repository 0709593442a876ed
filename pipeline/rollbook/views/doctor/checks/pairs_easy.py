"""pairs_easy: pairs that the policy tells apart already, far more clearly than its reference does.

    push on a pair = β σ(−margin)        margin = β (h_c − h_r), see pipeline/rollbook/components/losses/dpo.py

An undecided pair is pushed with β/2; at a margin of 3 a tenth of that is left.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import PositiveFloat

from rollbook.core.component import Share
from rollbook.views.doctor.chain import ChainReading
from rollbook.views.doctor.checks.base import Check
from rollbook.views.doctor.finding import Change, Finding
from rollbook.views.doctor.iteration import Reading

ACCURACIES, MARGINS = "rewards/accuracies", "rewards/margins"
FADING = ("sigmoid", "hinge", "robust", "exo_pair")
"""Variants of the loss whose push fades with this margin; others have a goal that is reached or measure by length."""


class PairsEasy(Check):
    """Pairs that have nothing left to teach.

    Fresh pairs are judged as their step begins, so an iteration of several epochs, which meets its own pairs again, is
    left out, and so is one whose reference is the policy it begins with: a large margin is then made by its own steps.

    Attributes:
        accuracies: share of pairs whose better answer gained more on the reference than the worse one.
        margins: their mean margin; at 3 a pair is pushed with a tenth of what an undecided one gets: σ(−3) = 0.047.
    """

    accuracies: Share = 0.95
    margins: PositiveFloat = 3.0

    def __call__(self, run: ChainReading) -> Iterator[Finding]:
        judged = [each for each in run.having(ACCURACIES, MARGINS) if _is_judged(each)]
        found = [
            each
            for each in judged
            if each.metrics[ACCURACIES] >= self.accuracies and each.metrics[MARGINS] >= self.margins
        ]
        if not found or found[-1] is not judged[-1]:
            return
        last = found[-1]
        yield self.finding(
            "warning",
            found,
            f"{last.metrics[ACCURACIES]:.0%} of pairs are decided already, by a margin of {last.metrics[MARGINS]:.2g}",
            [
                f"{each.key}: {ACCURACIES} {each.metrics[ACCURACIES]:.3g}, {MARGINS} {each.metrics[MARGINS]:.3g} "
                f"against {each.reference}"
                for each in found[-4:]
            ],
            f"by the measure of beta the policy is far from {last.reference} already, so these pairs hardly move it",
            Change(
                f"iterations.{last.key}.reference",
                last.reference,
                f"{last.previous}, and likewise later ones: pairs are then compared anew",
            ),
        )


def _is_judged(reading: Reading) -> bool:
    update = reading.recipe.update_policy
    return (
        update.loss.needs_pairs
        and getattr(update.loss, "variant", FADING[0]) in FADING
        and update.epochs == 1
        and reading.reference != reading.previous
    )
