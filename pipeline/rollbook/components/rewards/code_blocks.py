"""The code in a completion: what stands in its last fenced block (CommonMark's fences of backticks or tildes)."""

from __future__ import annotations

import re
from collections.abc import Collection

FENCE = re.compile(r"^(?P<indent> {0,3})(?P<fence>`{3,}|~{3,})[ \t]*(?P<tag>[^\s`]*)[^`\n]*$")
LINE_END = re.compile(r"\r\n?|\n")
"""As Python and Markdown have it; `splitlines` would cut a text in the code at a form feed or U+2028."""
PYTHON_TAGS = frozenset({"", "python", "py", "python3", "py3"})
"""Tags of a fence that may hold Python, in small letters; an untagged block may."""


def last_block(text: str, tags: Collection[str] = PYTHON_TAGS) -> str | None:
    """Code of the last block that is closed and tagged as one of `tags`; None if there is none.

    A block that is not closed is not finished: the completion was cut off inside.
    """
    found = None
    lines: list[str] = []
    fence, indent, wanted = "", 0, False
    for line in LINE_END.split(text):
        match = FENCE.match(line)
        if not fence:
            if match:
                fence, indent, lines = match["fence"], len(match["indent"]), []
                wanted = match["tag"].lower() in tags
        elif match and match["fence"].startswith(fence) and not line.strip().strip(fence[0]):
            found = "\n".join([*lines, ""]) if wanted else found
            fence = ""
        else:
            # A fence in a list item is indented with its code.
            lines.append(line[min(indent, len(line) - len(line.lstrip(" "))) :])
    return found
