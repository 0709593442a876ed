"""Regular expressions as settings: checked when the reward is built, not when the first row is scored.

Python's `re` has no time limit: a pattern with nested repeats, such as `(a+)+b`, can take for ever on a long
completion. Prefer possessive repeats (`a++`) and character classes to `.*` inside repeats.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return pattern


def _has_one_group(pattern: str) -> str:
    if (groups := re.compile(pattern).groups) != 1:
        raise ValueError(
            f"must have exactly one group (...), which is what is compared; has {groups} (write (?:...) for the others)"
        )
    return pattern


Regex = Annotated[str, AfterValidator(_compiles)]
"""A regular expression of Python's `re`."""

ExtractingRegex = Annotated[Regex, AfterValidator(_has_one_group)]
"""A regular expression with exactly one group."""
