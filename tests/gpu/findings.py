"""What a check found, as a line and as a row of a table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """What a check found: `ok`, `FAILED` or `skipped`, its figure, and what is allowed."""

    check: str
    verdict: str
    figure: str
    allowed: str = ""

    def __str__(self) -> str:
        bound = f" (allowed: {self.allowed})" if self.allowed else ""
        return f"{self.verdict:8}{self.check}: {self.figure}{bound}"


def at_most(check: str, value: float, limit: float) -> Finding:
    """A figure that must be small."""
    verdict = "ok" if value <= limit else "FAILED"
    return Finding(check, verdict, f"{value:.2g}", f"at most {limit:g}")


def at_least(check: str, value: float, limit: float) -> Finding:
    """A share that must be large."""
    return Finding(
        check, "ok" if value >= limit else "FAILED", f"{value:.3f}", f"at least {limit:g}"
    )


def same(check: str, holds: bool) -> Finding:
    """Something that must be equal, bit by bit."""
    return Finding(check, "ok" if holds else "FAILED", "equal" if holds else "different", "equal")
