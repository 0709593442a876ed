"""All checks of a project, asked about one chain."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rollbook.core.component import problems_of
from rollbook.core.errors import RollbookError
from rollbook.core.registry import build, menu
from rollbook.core.text import listed, visible
from rollbook.project.run.run import Run
from rollbook.settings.config import Params
from rollbook.views.doctor.chain import ChainReading, chain_reading_of
from rollbook.views.doctor.checks.base import Check
from rollbook.views.doctor.conflicts import Conflict, conflicts_of
from rollbook.views.doctor.finding import GRADES, Finding
from rollbook.views.doctor.iteration import recipes_changed

KIND = Check.kind


@dataclass(frozen=True)
class Diagnosis:
    """What the checks say of a chain.

    Attributes:
        iterations: that were looked at, in order; none if nothing has been run.
        checks: names of the checks that were asked.
        findings: the worst first, within a grade in the order of the chain.
        missing: tables and metrics that are not on this machine, so that checks that need them said nothing.
        outdated: tables made from others than those on disk, so that checks said nothing of them either.
        base: whether data, or an evaluation of the base policy, were there to look at.
        empty: tables and metrics that are there, and hold nothing to look at.
        changed: iterations that params.yaml has another recipe for now than they ran with.
    """

    iterations: Sequence[str]
    checks: Sequence[str]
    findings: Sequence[Finding]
    missing: Sequence[str]
    outdated: Sequence[str] = ()
    base: bool = False
    empty: Sequence[str] = ()
    changed: Sequence[str] = ()

    @property
    def looked_at_something(self) -> bool:
        """Whether there was anything to look at; if not, no finding says nothing of the run."""
        return bool(self.iterations) or self.base

    @property
    def looked_at_all(self) -> bool:
        """Whether nothing was left out; if not, silence is no clean bill."""
        return not (self.missing or self.outdated or self.empty)

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
                f"not on this machine, and not looked at: {listed(self.missing, 1)}; "
                "`rollbook pull` brings what was made"
            )
        if self.outdated:
            found.append(
                f"made from other tables than lie here, and not looked at: {listed(self.outdated, 1)}; "
                "`dvc repro` makes them again"
            )
        if self.empty:
            found.append(
                f"without anything to look at: {listed(self.empty, 1)}; "
                "`rollbook verify` says whether it is as it was made"
            )
        if self.changed:
            found.append(recipes_changed(self.changed))
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
            "changed": list(self.changed),
            "empty": list(self.empty),
        }


def diagnose(chain: str = "", run: Run | None = None) -> list[Finding]:
    """What is wrong with a chain of iterations, the worst first.

    Args:
        chain: an iteration whose chain is looked at; default: the last one started.
        run: default: that of the current folder.

    Raises:
        RollbookError: if there is no such iteration, a table is damaged, or a check fails.
    """
    return list(diagnosis_of(Run() if run is None else run, chain).findings)


def diagnosis_of(run: Run, chain: str = "") -> Diagnosis:
    """The same with what was looked at, and what could not be."""
    checks, read = checks_of(run.params), chain_reading_of(run, chain)
    found = [finding for check in checks for finding in _asked(check, read)]
    found.sort(key=lambda each: (-GRADES.index(each.grade), list(each.iterations)[:1], each.check))
    return Diagnosis(
        read.keys,
        [check.name for check in checks],
        found,
        read.missing,
        read.outdated,
        read.has_base,
        read.empty,
        read.changed,
    )


def checks_of(params: Params) -> list[Check]:
    """The checks that are asked about a project."""
    return [check for check in every_check(params) if not check.off]


def every_check(params: Params | None) -> list[Check]:
    """Built-in checks with the thresholds of params.yaml, then those of the project's own; those that are off too."""
    own = {check.name: check for check in params.doctor} if params is not None else {}
    built_in = {name: own.get(name) or build(KIND, name) for name in menu(KIND)}
    return [check for check in {**built_in, **own}.values() if isinstance(check, Check)]


def _asked(check: Check, run: ChainReading) -> list[Finding]:
    try:
        return [_whole(each) for each in check(run)]
    except RollbookError:
        raise
    except ValidationError as error:
        wrong = "; ".join(map(str, problems_of(error, "finding")))
        raise _failed(check, wrong) from error
    except (Exception, SystemExit) as error:
        raise _failed(check, f"{type(error).__name__}: {error}") from error


def _whole(found: object) -> Finding:
    """What a check gave, if it is a finding of nothing but text: one of a user's own may give anything."""
    if not isinstance(found, Finding):
        raise TypeError(f"it yielded {type(found).__name__}, expected a Finding")
    finding: Finding = _findings().validate_python(asdict(found))
    return finding


@functools.cache
def _findings() -> TypeAdapter[Finding]:
    return TypeAdapter(Finding)


def _failed(check: Check, why: str) -> RollbookError:
    named = f"name: {check.name}" if check.path is None else f'path: "{check.path}"'
    return RollbookError(
        f"check {check.name} failed: {visible(why)}",
        f"leave it out with `doctor: [{{{named}, off: true}}]` in params.yaml",
    )
