"""Text as characters: well-formed Unicode, and the script of letters, from the database that Python carries."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from functools import lru_cache

IGNORED = re.compile(
    r"```.*?(?:```|\Z)|`[^`\n]*+`|\$\$.*?\$\$|\$[^$\n]*+\$|\\[A-Za-z]++", re.DOTALL
)
"""Code and formulas: their Latin letters are no language."""
FAMILIES = {
    "CJK": "HAN",
    "IDEOGRAPHIC": "HAN",
    "HIRAGANA": "KANA",
    "KATAKANA": "KANA",
    "KATAKANA-HIRAGANA": "KANA",
}
WIDTHS = ("FULLWIDTH", "HALFWIDTH")


def without_surrogates(text: str) -> str:
    """`text` with lone surrogates, which are no characters and cannot be sent or tokenized, replaced by `?`."""
    return text.encode("utf-8", "replace").decode()


def scripts_in(text: str, code: bool = False) -> Counter[str]:
    """Letters of `text` by script, such as `{"LATIN": 12, "HAN": 3}`; code and formulas left out unless `code`."""
    plain = text if code else IGNORED.sub(" ", text)
    found: Counter[str] = Counter()
    for letter, count in Counter(plain).items():
        if (script := script_of(letter)) is not None:
            found[script] += count
    return found


@lru_cache(maxsize=1 << 16)
def script_of(letter: str) -> str | None:
    """`LATIN`, `CYRILLIC`, `HAN`, `KANA`, …; None for what is no letter, or belongs to no script (𝑥, ª)."""
    if unicodedata.category(letter) not in ("Ll", "Lu", "Lt", "Lo"):
        return None
    words = unicodedata.name(letter, "").split()
    if words and words[0] in WIDTHS:
        words = words[1:]
    if not words or words[0] in (
        "MATHEMATICAL",
        "DOUBLE-STRUCK",
        "SCRIPT",
        "FEMININE",
        "MASCULINE",
    ):
        return None
    return FAMILIES.get(words[0], words[0])
