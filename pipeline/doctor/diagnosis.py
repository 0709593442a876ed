"""All checks of a project, asked about one chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.config import Params
from pipeline.doctor.checks.base import Check
from pipeline.doctor.conflicts import Conflict, conflicts_of
from pipeline.doctor.finding import GRADES, Finding
from pipeline.doctor.readings import Readings, readings_of
from pipeline.errors import RollbookError
from pipeline.params import read_params
from pipeline.registry import build, menu

KIND = Check.kind


@dataclass(frozen=True)
class Diagnosis:
    """What the checks say of a chain.

    Attributes:
        iterations: that were looked at, in order; none if nothing has been run.
        checks: names of the checks that were asked.
        findings: the worst first, within a grade in the order of the chain.
        missing: tables that are not on this machine, so that checks that need them said nothing.
        outdated: scores of other rollouts than those on disk, so that checks said nothing of them either.
        base: whether data, or an evaluation of the base policy, were there to look at.
    """

    iterations: Sequence[str]
    checks: Sequence[str]
    findings: Sequence[Finding]
    missing: Sequence[str]
    outdated: Sequence[str] = ()
    base: bool = False

    @property
    def conflicts(self) -> list[Conflict]:
        """Settings that several findings would change, each to another number."""
        return conflicts_of(self.findings)

    @property
    def remarks(self) -> list[str]:
        """Sentences beside the findings: suggestions that differ, and what was not looked at."""
        found = [f"suggestions differ: {conflict}" for conflict in self.conflicts]
        if self.missing:
            found.append(
                f"not on this machine, and not looked at: {_first_of(self.missing)}; "
                "`rollbook pull` brings what was made"
            )
        if self.outdated:
            found.append(
                f"of other rollouts than lie here, and not looked at: {_first_of(self.outdated)}; "
                "`dvc repro` makes them again"
            )
        return found

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON values."""
        return {
            "iterations": list(self.iterations),
            "checks": list(self.checks),
            "findings": [finding.to_dict() for finding in self.findings],
            "conflicts": [asdict(conflict) for conflict in self.conflicts],
            "missing": list(self.missing),
            "outdated": list(self.outdated),
        }


def diagnose(chain: str = "", params: Params | None = None) -> list[Finding]:
    """What is wrong with a chain of iterations, the worst first.

    Args:
        chain: an iteration whose chain is looked at; default: the last one started.
        params: of the project; default: those of params.yaml.

    Raises:
        RollbookError: if there is no such iteration, a table is damaged, or a check fails.
    """
    return list(diagnosis_of(read_params() if params is None else params, chain).findings)


def diagnosis_of(params: Params, chain: str = "") -> Diagnosis:
    """The same with what was looked at, and what could not be."""
    checks, run = checks_of(params), readings_of(params, chain)
    found = [finding for check in checks for finding in _asked(check, run)]
    found.sort(key=lambda each: (-GRADES.index(each.grade), list(each.iterations)[:1], each.check))
    names = [check.name for check in checks]
    return Diagnosis(run.keys, names, found, run.missing, run.outdated, run.has_base)


def checks_of(params: Params) -> list[Check]:
    """The checks that are asked about a project."""
    return [check for check in every_check(params) if not check.off]


def every_check(params: Params | None) -> list[Check]:
    """Built-in checks with the thresholds of params.yaml, then those of the project's own; those that are off too."""
    own = {check.name: check for check in params.doctor} if params is not None else {}
    built_in = {name: own.get(name) or build(KIND, name) for name in menu(KIND)}
    return [check for check in {**built_in, **own}.values() if isinstance(check, Check)]


def _first_of(paths: Sequence[str]) -> str:
    return paths[0] + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")


def _asked(check: Check, run: Readings) -> list[Finding]:
    try:
        return list(check(run))
    except RollbookError:
        raise
    except Exception as error:
        raise RollbookError(
            f"check {check.name} failed: {type(error).__name__}: {error}",
            f"leave it out with `doctor: [{{name: {check.name}, off: true}}]` in params.yaml",
        ) from error
