"""clip_share: the clip holds a large part of the tokens, iteration after iteration.

A clipped token has no gradient: steps are so large that the later ones of an iteration have little left to learn from.
That is so where each token has its own ratio. Ratios of whole answers have bounds that any step leaves: within GSPO's
3e-4 (arXiv 2507.18071 §5.1) half or more of the tokens of a small task were clipped at learning rates of 1e-4, 3e-4 and
1e-3 alike, and the highest learned most. Losses with such ratios are left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import PositiveInt

from rollbook.core.component import Share
from rollbook.views.doctor.chain import ChainReading
from rollbook.views.doctor.checks.base import Check, slower
from rollbook.views.doctor.finding import Finding
from rollbook.views.doctor.iteration import Reading
from rollbook.views.doctor.statistics import successive

NAME = "clip_ratio/region_mean"


class ClipShare(Check):
    """A high share of clipped tokens in several iterations.

    Attributes:
        limit: share of tokens held by a bound; 0.2 in the first, 0.07 in the second and 0.02 in the sixth iteration of
            the shipped params.yaml (seeds 0 to 2).
        iterations: in a row that must be above it; the first of a chain often is, for the policy has most to learn
            then.
    """

    limit: Share = 0.15
    iterations: PositiveInt = 3

    def __call__(self, run: ChainReading) -> Iterator[Finding]:
        measured = [each for each in run.having(NAME) if _is_of_tokens(each)]
        flagged = [each.metrics[NAME] > self.limit for each in measured]
        found = successive(measured, flagged, self.iterations)
        if not found:
            return
        highest = max(each.metrics[NAME] for each in found)
        yield self.finding(
            "warning",
            found,
            f"up to {highest:.0%} of tokens are clipped, in {len(found)} iterations",
            [_evidence(each) for each in found[-4:]],
            "the learning rate is too high for the clip's bounds: the policy has left them early, and the rest of an "
            "iteration's steps have nothing to learn from",
            slower(found[-1], 3),
        )


def _is_of_tokens(reading: Reading) -> bool:
    return bool(reading.recipe.update_policy.loss.ratio == "token")


def _evidence(reading: Reading) -> str:
    said = f"{reading.key}: {reading.metrics[NAME]:.0%} of tokens"
    if (norm := reading.metrics.get("grad_norm")) is not None:
        said += f", gradient norm {norm:.2g}"
    return said
