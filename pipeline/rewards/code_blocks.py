"""The code in a completion: what stands in its last fenced block (CommonMark's fences of backticks or tildes)."""

from __future__ import annotations

import re
from collections.abc import Collection

FENCE = re.compile(r"^ {0,3}(?P<fence>`{3,}|~{3,})[ \t]*(?P<tag>[^\s`]*)[^`\n]*$")
PYTHON_TAGS = frozenset({"", "python", "py", "python3", "py3"})
"""Tags of a fence that may hold Python, in small letters; an untagged block may."""


def last_block(text: str, tags: Collection[str] = PYTHON_TAGS) -> str | None:
    """Code of the last block that is closed and tagged as one of `tags`; None if there is none.

    A block that is not closed is not finished: the completion was cut off inside.
    """
    found = None
    lines: list[str] = []
    fence, wanted = "", False
    for line in text.splitlines():
        match = FENCE.match(line)
        if not fence:
            if match:
                fence, lines = match["fence"], []
                wanted = match["tag"].lower() in tags
        elif match and match["fence"].startswith(fence) and not line.strip().strip(fence[0]):
            found = "\n".join([*lines, ""]) if wanted else found
            fence = ""
        else:
            lines.append(line)
    return found
