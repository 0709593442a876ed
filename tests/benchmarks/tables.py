"""Markdown tables."""

from __future__ import annotations

from collections.abc import Sequence


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in GitHub's Markdown; columns after the first are right-aligned."""
    lines = [head, ["---", *("--:" for _ in head[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
