"""`rollbook verify`."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

import click

from rollbook.cli.console import refuse_elsewhere
from rollbook.project.run.run import Run

if TYPE_CHECKING:
    from rollbook.project.verify.verification import Verification

MEGABYTE = 1e6


@click.command()
@click.option(
    "--fast",
    is_flag=True,
    help="Hash no tables and policies; only see whether artifacts name each other.",
)
@click.option(
    "--complete", is_flag=True, help="Count outputs that are not on this machine as findings."
)
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
def verify(fast: bool, complete: bool, as_json: bool) -> None:
    """Find out whether everything that is stored is what was recorded, down to the last bit.

    Hashes every output of dvc.lock, of rescores/dvc.lock and of sealed iterations again, in the workspace and in DVC's
    cache; checks the schema and the content hash of every table; checks that rollouts, scores, advantages and updates
    hold the same ids, that pairs are of rollouts that are there, and that policies, tables and run_info name each
    other's digests. Says of each fault where it is, what was expected, and how it is mended. Exit code 1 if there is
    one.

    What is not on this machine, such as policies of a clone that pulled only tables, is listed and no fault.

    Example: rollbook verify
    """
    from rollbook.project.verify.verification import verify as verified

    started = time.perf_counter()
    refuse_elsewhere()
    found = verified(Run(), fast, complete)
    seconds = time.perf_counter() - started
    if as_json:
        click.echo(json.dumps({**found.as_json(), "seconds": round(seconds, 3)}, indent=1))
    else:
        _show(found, seconds)
    sys.exit(1 if found.findings else 0)


def _show(found: Verification, seconds: float) -> None:
    for finding in found.findings:
        click.echo(f"{finding.path}: {finding.what}")
        if finding.mend:
            click.echo(f"  mend: {finding.mend}")
    for note in found.notes:
        click.echo(f"note: {note}")
    hashed = (
        f"{found.files} files, {found.size / MEGABYTE:,.1f} MB"
        if found.files
        else "contents not hashed"
    )
    count, absent = len(found.findings), len(found.absent)
    if count:
        verdict = f"{count} finding{'' if count == 1 else 's'}"
    elif absent:
        here = found.outputs - absent
        verdict = f"{here} as recorded, {absent} not on this machine"
    else:
        verdict = "all as recorded" if found.outputs else "nothing is recorded"
    click.echo(
        f"{found.outputs} outputs of {found.steps} steps, {hashed}, in {seconds:.1f} s: {verdict}"
    )
