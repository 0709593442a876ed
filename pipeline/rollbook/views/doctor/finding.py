"""What a check found: how bad it is, where it shows, why, and what to change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Grade = Literal["note", "warning", "serious"]
GRADES: tuple[Grade, ...] = ("note", "warning", "serious")
"""From worth knowing, over worth changing, to what makes the run say nothing."""


@dataclass(frozen=True)
class Change:
    """What to change in params.yaml.

    Attributes:
        setting: dotted place, such as `recipes.grpo.update_policy.learning_rate`.
        now: what stands there, or is its default, as YAML.
        suggested: what to write instead, as YAML, or in words where only you can know.
    """

    setting: str
    now: str
    suggested: str

    def __str__(self) -> str:
        return f"{self.setting}: {self.now} → {self.suggested}"


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        check: name of the check that says so.
        grade: see `GRADES`.
        iterations: keys that it shows in, in the order of the chain; `i0000` is the base policy.
        title: one line with the main figure.
        evidence: lines of figures, each with the ids that it is from.
        cause: what most likely made it.
        change: what to change.
    """

    check: str
    grade: Grade
    iterations: Sequence[str]
    title: str
    evidence: Sequence[str]
    cause: str
    change: Change

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON values."""
        found = asdict(self)
        return {**found, "iterations": list(self.iterations), "evidence": list(self.evidence)}

    @property
    def where(self) -> str:
        """Its iterations in short: the first and the last of several."""
        if not self.iterations:
            return ""
        first, last = self.iterations[0], self.iterations[-1]
        return first if first == last else f"{first}–{last}"


def at_least(grade: str, limit: str) -> bool:
    """Whether a grade is `limit` or worse."""
    order: tuple[str, ...] = GRADES
    return order.index(grade) >= order.index(limit)
