"""`rollbook doctor`."""

from __future__ import annotations

import json
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

import click

from rollbook.cli.console import WIDTH_IN_FILES, note_off_lock, refuse_elsewhere
from rollbook.core.errors import ArtifactError
from rollbook.core.ids import BASE_KEY, PARAMS_FILE
from rollbook.core.text import json_safe, visible

if TYPE_CHECKING:
    from rollbook.views.doctor.checks.base import Check
    from rollbook.views.doctor.diagnosis import Diagnosis
    from rollbook.views.doctor.finding import Finding

NEVER = "never"


@click.command()
@click.option(
    "--chain", default="", metavar="KEY", help="The iteration whose chain is looked at; the last."
)
@click.option(
    "--fail-on",
    default="serious",
    show_default=True,
    type=click.Choice(["note", "warning", "serious", NEVER]),
    help="Exit code 1 if there is a finding of this grade or a worse one.",
)
@click.option("--list", "listed", is_flag=True, help="Print every check with its thresholds.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings, or the checks, as JSON.")
def doctor(chain: str, fail_on: str, listed: bool, as_json: bool) -> None:
    """Say what is wrong with a run: with figures and ids, the likely cause, and the parameter to change.

    Reads stored metrics and tables along one chain of iterations; needs no torch and changes nothing. Findings are
    notes, warnings, or serious: then the run does not say what it seems to say. Thresholds are settings, with where
    their values come from (--list), and are changed under `doctor:` in params.yaml, such as
    `doctor: [{name: clip_share, limit: 0.4}, {name: zero_signal, off: true}, {path: "mine.py:MyCheck"}]`.

    Example: rollbook doctor --fail-on warning
    """
    if listed:
        _list(as_json)
        return
    refuse_elsewhere()
    from rollbook.core.lean_imports import import_numpy_alone, settle_without_pandas

    started = time.perf_counter()
    import_numpy_alone()
    from rollbook.project.run.run import Run

    run = Run()
    with redirect_stdout(sys.stderr):
        own = [check for check in run.params.doctor if check.path is not None]
    if not own:  # one of the user's may bring pandas
        settle_without_pandas()
    from rollbook.project.ancestry import EMPTY, GET
    from rollbook.views.doctor.diagnosis import diagnosis_of
    from rollbook.views.doctor.finding import at_least

    with redirect_stdout(sys.stderr):  # what the user's own checks print is no part of it
        found = diagnosis_of(run, chain)
    if not found.looked_at_something:
        raise ArtifactError(EMPTY, GET)
    note_off_lock({BASE_KEY, *found.iterations}, run)
    seconds = time.perf_counter() - started
    if as_json:
        click.echo(json.dumps({**found.to_dict(), "seconds": round(seconds, 3)}, indent=1))
    else:
        _show(found, seconds)
    failed = fail_on != NEVER and any(at_least(each.grade, fail_on) for each in found.findings)
    sys.exit(1 if failed else 0)


def _show(found: Diagnosis, seconds: float) -> None:
    for finding in found.findings:
        click.echo("\n".join(map(visible, _lines(finding))))
    for remark in found.remarks:
        click.echo(visible(remark))
    looked = f"{len(found.checks)} checks of {_looked_at(found)}, in {seconds:.1f} s"
    click.echo(f"{looked}: {_verdict(found.findings)}")


def _looked_at(found: Diagnosis) -> str:
    count = len(found.iterations)
    if not count:
        return "what is there before training"
    of = f" ({found.iterations[0]}–{found.iterations[-1]})" if count > 1 else ""
    return f"{_counted(count, 'iteration')}{of}"


def _lines(finding: Finding) -> Iterator[str]:
    where = f" {finding.where}" if finding.where else ""
    yield f"{finding.grade.upper()} {finding.check}{where}: {finding.title}"
    yield from (f"  {line}" for line in finding.evidence)
    yield f"  cause: {finding.cause}"
    yield f"  change: {finding.change}"
    yield ""


def _verdict(findings: Sequence[Finding]) -> str:
    from rollbook.views.doctor.finding import GRADES

    grades = [finding.grade for finding in findings]
    words = {"note": "note", "warning": "warning", "serious": "serious finding"}
    counted = [
        _counted(grades.count(grade), words[grade]) for grade in reversed(GRADES) if grade in grades
    ]
    return ", ".join(counted) or "nothing to report"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _list(as_json: bool) -> None:
    """Every check with its thresholds as they stand, and what their docstrings say of them."""
    from rollbook.core.field_docs import headline_of
    from rollbook.project.run.run import Run
    from rollbook.views.doctor.diagnosis import every_check

    with redirect_stdout(sys.stderr):
        checks = every_check(Run().params if PARAMS_FILE.exists() else None)
    if as_json:
        content = {
            check.name: {
                "about": headline_of(type(check)),
                "off": check.off,
                "thresholds": {
                    name: {"value": value, "meaning": meaning}
                    for name, value, meaning in _thresholds(check)
                },
            }
            for check in checks
        }
        click.echo(json_safe(json.dumps(content, indent=1, ensure_ascii=False)))
        return
    for check in checks:
        line = f"{check.name}: {headline_of(type(check))}{' (off)' if check.off else ''}"
        click.echo(visible(line))
        for name, value, meaning in _thresholds(check):
            click.echo(
                textwrap.fill(
                    visible(f"{name}: {value}  {meaning}"),
                    WIDTH_IN_FILES,
                    initial_indent="  ",
                    subsequent_indent="      ",
                )
            )


def _thresholds(check: Check) -> Iterator[tuple[str, Any, str]]:
    """Name, value and meaning of the fields that a check does not share with all components."""
    from rollbook.core.component import Component
    from rollbook.core.field_docs import text_on

    values = check.settings()
    for name in type(check).model_fields:
        if name not in Component.model_fields and name != "off":
            yield name, values[name], text_on(type(check), name)
