"""token_limit: a limit that cuts off the base policy's answers, known before anything is trained."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rollbook.core.component import Share
from rollbook.core.ids import BASE_KEY
from rollbook.core.yaml import flow
from rollbook.views.doctor.chain import ChainReading
from rollbook.views.doctor.checks.base import Check, change_of
from rollbook.views.doctor.finding import Change, Finding

PERCENTILE = 99


class TokenLimit(Check):
    """Answers of the base policy's evaluation that do not fit the limit of the evaluation, or of the first recipe.

    Attributes:
        limit: share of the base policy's answers; the same as `truncation` allows while training.
    """

    limit: Share = 0.1

    def __call__(self, run: ChainReading) -> Iterator[Finding]:
        yield from self._evaluation(run)
        lengths, first = run.base_lengths, run.first
        if lengths is None or not len(lengths) or first is None:
            return
        allowed = first.recipe.generate_rollouts.max_completion_tokens
        share = float(np.mean(lengths > allowed))
        if share <= self.limit:
            return
        yield self.finding(
            "serious",
            [BASE_KEY],
            f"{share:.0%} of the base policy's answers are longer than the {allowed} tokens that training allows",
            [
                f"{BASE_KEY}: {len(lengths)} answers of the evaluation, {np.mean(lengths):.3g} tokens on average, "
                f"{PERCENTILE} % within {np.percentile(lengths, PERCENTILE):.0f}"
            ],
            "the token limit was chosen without looking at what the base policy says",
            change_of(
                first,
                "generate_rollouts.max_completion_tokens",
                2 * max(allowed, int(np.ceil(np.percentile(lengths, PERCENTILE)))),
            ),
        )

    def _evaluation(self, run: ChainReading) -> Iterator[Finding]:
        allowed = run.params.evaluate_policy.max_completion_tokens
        for name, share in run.base_metrics.items():
            if name.startswith("eval/") and name.endswith("/clipped_ratio") and share > self.limit:
                yield self.finding(
                    "warning",
                    [BASE_KEY],
                    f"{share:.0%} of the base policy's evaluation is cut off at {allowed} tokens",
                    [f"{BASE_KEY}: {name} {share:.3f}"],
                    "the limit of the evaluation is below what the base policy needs to come to an end",
                    Change(
                        "evaluate_policy.max_completion_tokens", flow(allowed), flow(2 * allowed)
                    ),
                )
