"""Which tokens of a rollout a bound of the loss held, from stored log-probs: the loss's own test, without torch.

Known for losses that clip ratios of tokens or rollouts between two numbers. The update has stored which share of the
rollout's tokens it saw clipped: unless this finds as many, nothing is marked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from pipeline.config import UpdatePolicy
from pipeline.field_docs import headline_of
from pipeline.losses.clip import Clipping
from pipeline.losses.ratio import LOG_RATIO_LIMIT
from pipeline.showing.facts import Token

AGREE = 1e-6
"""Shares of tokens closer than this are equal: both are counts over the same number of tokens."""


@dataclass(frozen=True)
class Objective:
    """The loss that an update ran with.

    Attributes:
        name: of the loss.
        words: what it does, in one line; empty if it cannot be built any more.
        update: its settings; None if this Rollbook cannot read them.
    """

    name: str
    words: str
    update: UpdatePolicy | None

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Objective:
        """From the recorded settings of `update_policy`."""
        recorded = settings.get("update", {})
        name = str(recorded.get("loss", {}).get("name", ""))
        try:
            update = UpdatePolicy.model_validate(recorded)
        except ValidationError:
            return cls(name, "", None)
        return cls(name, headline_of(type(update.loss)), update)

    @property
    def bounds(self) -> tuple[float, float, float] | None:
        """Lowest and highest ratio, and the cap before them; None where the loss does not clip ratios so."""
        loss: Any = self.update.loss if self.update is not None else None
        if isinstance(loss, Clipping):
            cap = math.inf if loss.delta is None else loss.delta
            return 1 - loss.clip_low, 1 + loss.clip_high, cap
        if type(loss).__module__ == "pipeline.losses.cispo":  # not imported for another loss
            return loss.floor, loss.cap, math.inf
        return None

    def compared_with(self, token: Token) -> float | None:
        """The log-prob that a ratio is taken against; None where it was the current policy's own, or is not stored."""
        update = self.update
        if update is None:
            return None
        if update.old_logprobs == "sampling":
            return token.sampling_logprob
        return token.old_logprob if update.compares_with_measured else token.policy_logprob


def with_ratios(tokens: Sequence[Token], objective: Objective) -> list[Token]:
    """The tokens with the ratio of each, where the update has seen it."""
    found = []
    for token in tokens:
        old = objective.compared_with(token)
        if token.trained and token.policy_logprob is not None and old is not None:
            limited = max(-LOG_RATIO_LIMIT, min(LOG_RATIO_LIMIT, token.policy_logprob - old))
            found.append(replace(token, ratio=math.exp(limited)))
        else:
            found.append(token)
    return found


def with_clips(
    tokens: Sequence[Token], advantage: float, share: float | None, objective: Objective
) -> list[Token]:
    """The tokens with what held each; as they were where that cannot be told.

    Args:
        tokens: with their ratios.
        advantage: of the rollout, for tokens that have none of their own.
        share: of its trained-on tokens that the update saw clipped.
        objective: loss that it ran with.
    """
    bounds = objective.bounds
    seen = [token for token in tokens if token.ratio is not None]
    if bounds is None or share is None or not seen:
        return list(tokens)
    ratios = {token.place: float(token.ratio or 0.0) for token in seen}
    assert objective.update is not None
    if objective.update.loss.per_row:
        logs = math.fsum(math.log(ratio) for ratio in ratios.values())
        if objective.update.loss.ratio != "sequence_product":
            logs /= len(seen)
        row = math.exp(max(-LOG_RATIO_LIMIT, min(LOG_RATIO_LIMIT, logs)))
        ratios = dict.fromkeys(ratios, row)
    marks = {
        token.place: _held(
            ratios[token.place],
            advantage if token.advantage is None else token.advantage,
            bounds,
        )
        for token in seen
    }
    if abs(sum(map(bool, marks.values())) / len(seen) - share) > AGREE:
        return list(tokens)
    return [replace(token, clipped=marks.get(token.place, "")) for token in tokens]


def _held(ratio: float, advantage: float, bounds: tuple[float, float, float]) -> str:
    low, high, cap = bounds
    if advantage < 0 and min(ratio, cap) < low:
        return "low"
    return "high" if advantage > 0 and min(ratio, cap) > high else ""
