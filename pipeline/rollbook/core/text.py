"""Texts of models and data made safe to look at: nothing in them moves a cursor, hides, or reads in another order."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection

PICTURES = {**{chr(code): chr(0x2400 + code) for code in range(0x20)}, "\x7f": "␡"}
"""Control characters and Unicode's pictures of them."""
NEWLINE, TAB = "↵", "⇥"
INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
"""Categories without a look of their own: controls, bidi and other format characters, what no font has."""
OTHER = re.compile(r"[^\x20-\x7e]")
"""Characters that need a look; most texts have few."""


def visible(text: str, lines: bool = False) -> str:
    """The text with a sign for every character that has none, such as ␛ or ‹U+202E›.

    Args:
        text: of anyone.
        lines: whether a new line begins one; else there is only its sign.
    """
    newline = f"{NEWLINE}\n" if lines else NEWLINE
    return OTHER.sub(lambda found: newline if found[0] == "\n" else _shown(found[0]), text)


def listed(names: Collection[str], shown: int = 3, separator: str = ", ") -> str:
    """The first of some names, and how many more there are.

    Args:
        names: of any number.
        shown: of them, at most.
        separator: between two.
    """
    more = len(names) - shown
    if more <= 0:
        return separator.join(names)
    return f"{separator.join([*names][:shown])} and {more} more"


def json_safe(text: str) -> str:
    r"""JSON text in which characters without a look are written as `\uXXXX`; it means the same."""
    return "".join(
        _escaped(each) if each != "\n" and unicodedata.category(each) in INVISIBLE else each
        for each in text
    )


def _shown(each: str) -> str:
    if each == "\t":
        return TAB
    if each in PICTURES:
        return PICTURES[each]
    return f"‹U+{ord(each):04X}›" if unicodedata.category(each) in INVISIBLE else each


def _escaped(each: str) -> str:
    units = each.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
