"""Verdicts of replays in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

import click

from rollbook.cli.console import show, table
from rollbook.project.replay.steps import NOT_REPLAYED
from rollbook.project.replay.verdict import Outcome, StepVerdict

SHOWN_CHANGES = 8


def show_progress(verdicts: Sequence[StepVerdict], asked: int) -> None:
    """One line on the last of several verdicts; `asked` is how many there are going to be."""
    last = verdicts[-1]
    click.echo(f"{len(verdicts)} of {asked}: {last.step}: {last.outcome}, {last.seconds:.1f} s")


def show_verdicts(verdicts: Sequence[StepVerdict]) -> None:
    """One step in full; several as a table, then in full those that are not identical or have notes."""
    if len(verdicts) == 1:
        _print_step(verdicts[0])
        _print_around(verdicts)
        return
    _print_table(verdicts)
    for verdict in verdicts:
        if verdict.outcome is not Outcome.IDENTICAL or verdict.notes:
            _print_step(verdict)
            click.echo("")
    _print_around(verdicts)
    counts = [f"{sum(v.outcome is each for v in verdicts)} {each}" for each in Outcome]
    click.echo(f"{len(verdicts)} steps: {', '.join(text for text in counts if text[:2] != '0 ')}")
    click.echo(f"not replayed, since they make no artifact: {', '.join(NOT_REPLAYED)}")


def _print_table(verdicts: Sequence[StepVerdict]) -> None:
    from rich.text import Text

    shown = table("step", "verdict", "outputs", "code", "took", "then")
    for each in verdicts:
        took = f"{each.seconds:.1f} s", f"{each.seconds_then:.1f} s" if each.seconds_then else ""
        row = (each.step, str(each.outcome), str(len(each.outputs) or ""), each.code, *took)
        shown.add_row(*map(Text, row))
    show("Replayed", shown)


def _print_step(verdict: StepVerdict) -> None:
    """All about one step; what differs stands in full."""
    click.echo(f"{verdict.step}: {verdict.outcome}")
    if verdict.problem:
        click.echo(_indented(verdict.problem))
        return
    for each in verdict.outputs:
        said = f": {each.comparison.text}" if each.comparison.text else ""
        if each.comparison.apart is not None:
            said += f"; no number is farther than {each.comparison.apart:.2g} apart"
        click.echo(f"  {each.path}: {each.comparison.outcome}{said}")
    if (allowed := verdict.tolerance).reason:
        click.echo(
            f"  numbers may be {allowed.numbers:g} apart, weights {allowed.weights:g}: {allowed.reason}"
        )
    click.echo(f"  ran {_ran(verdict)}")
    for note in verdict.notes:
        click.echo(f"  note: {note}")


def _ran(verdict: StepVerdict) -> str:
    """Where code and settings were taken from; what both have in common is said once."""
    if verdict.settings == f"params.yaml of {verdict.code}":
        return f"code and params.yaml of {verdict.code}"
    return f"the code of {verdict.code}, with {verdict.settings}"


def _print_around(verdicts: Sequence[StepVerdict]) -> None:
    """What is not as it was when the steps ran first, once for all of them."""
    changes = list(dict.fromkeys(each for verdict in verdicts for each in verdict.code_since))
    for change in changes[:SHOWN_CHANGES]:
        click.echo(f"  since then: {change}")
    if len(changes) > SHOWN_CHANGES:
        click.echo(f"  since then: and {len(changes) - SHOWN_CHANGES} more changes")
    for each in dict.fromkeys(each for verdict in verdicts for each in verdict.environment):
        click.echo(f"  {each.what}: {each.then} then, {each.now} now")


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
