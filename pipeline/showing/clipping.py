"""Which tokens of a rollout a bound of the loss held, from stored log-probs: the loss's own test, without torch.

Known for losses that hold ratios of tokens or rollouts between two numbers, and for dppo, which bounds probabilities.
The update has stored which share of the rollout's tokens it saw clipped: unless this finds as many, nothing is marked.
clip_cov and kl_cov choose tokens by all others of a micro-batch, which is not stored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from pipeline.field_docs import headline_of
from pipeline.losses.clip import Clipping
from pipeline.losses.ratio import LOG_RATIO_LIMIT
from pipeline.recipe_sections import UpdatePolicy
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
        loss = recorded.get("loss") if isinstance(recorded, Mapping) else None
        name = str(loss.get("name", "")) if isinstance(loss, Mapping) else ""
        try:
            update = UpdatePolicy.model_validate(recorded)
        except ValidationError:
            return cls(name, "", None)
        return cls(name, headline_of(type(update.loss)), update)

    def held(self, token: Token, ratio: float, advantage: float) -> str | None:
        """`low` or `high` for the bound that holds a token, empty for none; None where this loss clips otherwise.

        Args:
            token: with its ratio.
            ratio: that the loss looks at, which may be the one of the whole rollout.
            advantage: of the token.
        """
        loss: Any = self.update.loss if self.update is not None else None
        name = type(loss).__module__.removeprefix(
            "pipeline.losses."
        )  # none is imported for another
        if name == "dppo":
            return _outside_region(loss, token, advantage)
        if isinstance(loss, Clipping):
            ratio = ratio if loss.delta is None else min(ratio, loss.delta)
            bounds = 1 - loss.clip_low, 1 + loss.clip_high
        elif name == "cispo":
            bounds = loss.floor, loss.cap
        elif name == "gmpo":
            bounds = math.exp(-loss.clip_low), math.exp(loss.clip_high)
        else:
            return None
        if advantage < 0 and ratio < bounds[0]:
            return "low"
        return "high" if advantage > 0 and ratio > bounds[1] else ""

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
    ratios = {token.place: float(token.ratio or 0.0) for token in seen}
    if objective.update.loss.per_row:
        logs = math.fsum(math.log(ratio) for ratio in ratios.values())
        if objective.update.loss.ratio != "sequence_product":
            logs /= len(seen)
        row = math.exp(max(-LOG_RATIO_LIMIT, min(LOG_RATIO_LIMIT, logs)))
        ratios = dict.fromkeys(ratios, row)
    marks = {}
    for token in seen:
        own = advantage if token.advantage is None else token.advantage
        mark = objective.held(token, ratios[token.place], own)
        if mark is None:
            return list(tokens)
        marks[token.place] = mark
    if abs(sum(map(bool, marks.values())) / len(seen) - share) > AGREE:
        return list(tokens)
    return [replace(token, clipped=marks.get(token.place, "")) for token in tokens]


def _outside_region(loss: Any, token: Token, advantage: float) -> str:
    """The test of `pipeline/losses/dppo.py` on one token."""
    from pipeline.losses.dppo import EPS

    assert token.ratio is not None and token.policy_logprob is not None
    old_logprob = token.policy_logprob - math.log(token.ratio)
    now, old = math.exp(token.policy_logprob), math.exp(old_logprob)
    moved = divergence = now - old
    if loss.divergence == "kl":
        rest = math.log((max(1 - old, 0.0) + EPS) / (max(1 - now, 0.0) + EPS))
        divergence = old * (old_logprob - token.policy_logprob) + (1 - old) * rest
    if advantage > 0:
        return "high" if moved > 0 and abs(divergence) > loss.clip_high else ""
    return "low" if moved < 0 and abs(divergence) > loss.clip_low else ""
