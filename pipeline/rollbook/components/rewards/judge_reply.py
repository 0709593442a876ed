"""Scores read out of a judge's reply."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping
from typing import Any

from rollbook.core.errors import RewardError

SCORE = r"(?i)\bscore[^\w+-]{0,10}([-+]?[0-9]++(?:\.[0-9]++)?+(?!\w))"


def scores_in(
    reply: str, criteria: Collection[str], pattern: str, lowest: float, highest: float
) -> dict[str, float]:
    """Scores scaled to [0, 1], by criterion, or as "" where there are no criteria.

    Args:
        reply: as the judge wrote it.
        criteria: names that the reply's last JSON object holds a score for.
        pattern: without criteria: expression whose group is the score; the last match counts.
        lowest: score that becomes 0.
        highest: score that becomes 1.

    Raises:
        RewardError: if the reply holds none, or one that is out of range.
    """
    found: Mapping[str, Any] | None
    if criteria:
        found = _last_object(reply, criteria)
    else:
        matches = list(re.finditer(pattern, reply))
        found = {"": matches[-1][1]} if matches else None
    if found is None:
        wanted = f"JSON object with {', '.join(criteria)}" if criteria else "score"
        raise RewardError(f"no {wanted} in the judge's reply {_shown(reply)}")
    scores = {name: _number(found[name]) for name in criteria or [""]}
    for name, score in scores.items():
        if not lowest <= score <= highest:  # NaN too
            raise RewardError(
                f"{name or 'score'} {str(found[name])[:20]!r} is not a number from {lowest:g} to {highest:g}, "
                f"in the judge's reply {_shown(reply)}"
            )
    return {name: (score - lowest) / (highest - lowest) for name, score in scores.items()}


def _number(value: Any) -> float:
    """NaN for what is none."""
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _last_object(reply: str, names: Collection[str]) -> dict[str, Any] | None:
    """The last JSON object in `reply` that has all `names`."""
    decoder = json.JSONDecoder()
    end = len(reply)
    while (start := reply.rfind("{", 0, end)) >= 0:
        try:
            value, _ = decoder.raw_decode(reply, start)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict) and value.keys() >= set(names):
            return value
        end = start
    return None


def _shown(reply: str) -> str:
    """The end of a reply, where the verdict should be."""
    words = " ".join(reply.split())
    return repr(words if len(words) <= 100 else f"…{words[-100:]}")
