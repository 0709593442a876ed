"""Which tokens of a rollout the loss clipped, from stored log-probs, by `Loss.clipped_at`: without torch.

The update has stored which share of the rollout's tokens it saw clipped: unless this finds as many, nothing is marked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from rollbook.components.losses.ratio import LOG_RATIO_LIMIT
from rollbook.project.curve_words import USUAL_CLIPPING
from rollbook.views.show.facts import Token

if TYPE_CHECKING:
    from rollbook.settings.recipe_sections import UpdatePolicy

AGREE = 1e-6
"""Shares of tokens closer than this are equal: both are counts over the same number of tokens."""
OF_TOKENS = "token"
"""The ratio that a loss takes of each token by itself."""


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
        # Here: a page of a policy or a prompt asks no loss, and is shown sooner without them.
        from rollbook.core.field_docs import headline_of
        from rollbook.settings.recipe_sections import UpdatePolicy

        recorded = settings.get("update", {})
        loss = recorded.get("loss") if isinstance(recorded, Mapping) else None
        name = str(loss.get("name", "")) if isinstance(loss, Mapping) else ""
        try:
            update = UpdatePolicy.model_validate(recorded)
        except ValidationError:
            return cls(name, "", None)
        return cls(name, headline_of(type(update.loss)), update)

    @property
    def has_ratio(self) -> bool:
        """Whether a ratio says anything: a loss without one measures no log-probs to compare with, and stores 1."""
        update = self.update
        return update is None or update.old_logprobs == "sampling" or update.loss.compares_with_old

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
    if not objective.has_ratio:
        return list(tokens)
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
    seen = [token for token in tokens if token.ratio is not None]
    if objective.update is None or share is None or not seen:
        return list(tokens)
    loss = objective.update.loss
    ratios = {token.place: float(token.ratio or 0.0) for token in seen}
    if loss.per_row:
        logs = math.fsum(math.log(ratio) for ratio in ratios.values())
        if loss.ratio != "sequence_product":
            logs /= len(seen)
        row = math.exp(max(-LOG_RATIO_LIMIT, min(LOG_RATIO_LIMIT, logs)))
        ratios = dict.fromkeys(ratios, row)
    marks = {}
    for token in seen:
        own = advantage if token.advantage is None else token.advantage
        mark = loss.clipped_at(ratios[token.place], float(token.policy_logprob or 0.0), own)
        if mark is None:
            return list(tokens)
        marks[token.place] = mark
    if abs(sum(map(bool, marks.values())) / len(seen) - share) > AGREE:
        return list(tokens)
    return [replace(token, clipped=marks.get(token.place, "")) for token in tokens]


def clipping_in_words(loss: Mapping[str, Any]) -> str:
    """Says that a large share of clipped tokens is usual, where the loss takes one ratio per answer; else empty.

    Args:
        loss: as run_info recorded it.
    """
    if loss.get("ratio", OF_TOKENS) == OF_TOKENS:
        return ""
    bounds = "".join(
        f", {name} {loss[name]:g}" for name in ("clip_low", "clip_high") if loss.get(name)
    )
    return f"ratio {loss['ratio']}{bounds}: {USUAL_CLIPPING}"
