"""Findings that would change one setting to different values: each check knows its own evidence alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rollbook.views.doctor.finding import Finding


@dataclass(frozen=True)
class Conflict:
    """One setting, and several numbers that it should have.

    Attributes:
        setting: dotted place, as in `Change`.
        suggested: numbers by the check that suggests them, the gravest finding first.
        opposite: whether one is above what stands there now and another below.
    """

    setting: str
    suggested: Mapping[str, str]
    opposite: bool

    def __str__(self) -> str:
        values = ", ".join(f"{value} ({check})" for check, value in self.suggested.items())
        advice = (
            "these contradict each other, so look for what both come from"
            if self.opposite
            else "change it once, as the first says, and look again"
        )
        return f"{self.setting}: {values}: {advice}"


def conflicts_of(findings: Sequence[Finding]) -> list[Conflict]:
    """Settings that findings suggest different numbers for.

    Args:
        findings: the worst first.
    """
    by_setting: dict[str, list[Finding]] = {}
    for finding in findings:
        if _number(finding.change.suggested) is not None:
            by_setting.setdefault(finding.change.setting, []).append(finding)
    conflicts = []
    for setting, found in by_setting.items():
        suggested: dict[str, str] = {}
        for each in found:
            suggested.setdefault(each.check, each.change.suggested)
        if len(set(suggested.values())) > 1:
            conflicts.append(Conflict(setting, suggested, _opposite(found)))
    return conflicts


def _opposite(findings: Sequence[Finding]) -> bool:
    signs = set()
    for finding in findings:
        now, then = _number(finding.change.now), _number(finding.change.suggested)
        if now is not None and then is not None and now != then:
            signs.add(then > now)
    return len(signs) > 1


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
