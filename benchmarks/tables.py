"""Markdown tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in GitHub's Markdown; columns after the first are right-aligned."""
    lines = [head, ["---", *("--:" for _ in head[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def spread(ratios: Sequence[float]) -> str:
    """Median, smallest and largest."""
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"
