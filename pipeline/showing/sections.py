"""What a page about something is made of; a terminal and a browser draw the same parts, each in its way.

Texts in here may be anyone's: whoever draws a part makes them safe first (`pipeline.showing.visible`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeline.showing.facts import Piece, Token

LEVELS = (0.9, 0.5, 0.1, 0.01)
"""Probabilities below which a token of a heat strip is one degree warmer."""
LEGEND = "likelihood under the policy that sampled:"
CLIP_MARKS = {"low": "↓", "high": "↑"}
"""What stands behind a token that the lower or the upper bound held."""
NOTHING = "–"


@dataclass(frozen=True)
class Pairs:
    """Names and values, one pair a line."""

    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Grid:
    """A table.

    Attributes:
        head: names of its columns.
        rows: cells.
        numbers: columns that are set to the right.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[str] = ()


@dataclass(frozen=True)
class Passage:
    """A text of several lines."""

    text: str


@dataclass(frozen=True)
class PromptStrip:
    """The tokens of a prompt, special ones set apart."""

    pieces: Sequence[Piece]


@dataclass(frozen=True)
class HeatStrip:
    """The tokens of a completion by how likely each was, with marks on those that were clipped or not trained on."""

    tokens: Sequence[Token]


@dataclass(frozen=True)
class Lines:
    """Lines as they are; `formula` for such as must keep their columns."""

    lines: Sequence[str]
    formula: bool = False


@dataclass(frozen=True)
class Verdict:
    """A sentence, and whether it is good news; None: neither."""

    text: str
    good: bool | None


Part = Pairs | Grid | Passage | PromptStrip | HeatStrip | Lines | Verdict


@dataclass(frozen=True)
class Section:
    """Parts under a title."""

    title: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Page:
    """All about one thing.

    Attributes:
        title: what it is, such as `rollout`.
        name: its id.
        subtitle: one line.
        sections: in order.
    """

    title: str
    name: str
    subtitle: str
    sections: Sequence[Section] = field(default_factory=list)


def level_of(logprob: float) -> int:
    """How warm a token is: 0 for one that was nearly certain, up to the number of LEVELS."""
    probability = math.exp(min(logprob, 0.0))
    return sum(probability < level for level in LEVELS)


def shown(value: object, digits: int = 4) -> str:
    """A value on a line: numbers short, truth values as words, what is missing as a dash."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    return str(value)


def signed(value: float | None) -> str:
    """A number with its sign."""
    return NOTHING if value is None or math.isnan(value) else f"{value:+.4f}"


def share(value: float | None) -> str:
    """A share in percent."""
    return NOTHING if value is None or math.isnan(value) else f"{value:.1%}"
