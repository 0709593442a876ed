"""`rollbook report`: the table that `make train` ends with."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rollbook.cli.console import refuse_elsewhere, thinned
from rollbook.core.own_code import source_root
from rollbook.project.report import Report, ReportedPolicy, read_report
from rollbook.project.run.run import Run

if TYPE_CHECKING:
    from rich.console import Console

ROWS_SHOWN = 24
WIDTH_IN_FILES = 120


@click.command()
def report() -> None:
    """Show the evaluation by iteration, with 95 % intervals, and where to look next.

    Example: rollbook report
    """
    refuse_elsewhere()
    from rich.console import Console

    run, console = Run(), Console()
    found, changed = as_it_ran(read_report(run), run)
    print_table(
        found,
        console if console.is_terminal else Console(width=WIDTH_IN_FILES),
        len(run.params.every_iteration),
    )
    if changed:
        from rollbook.views.doctor.iteration import recipes_changed

        click.echo(f"note: {recipes_changed(changed)}", err=True)


def as_it_ran(report: Report, run: Run) -> tuple[Report, list[str]]:
    """The report with the recipes that iterations ran with, and those that params.yaml has another one for now."""
    ran = {item.key: run.iteration(item.key) for item in report.iterations}
    named = [replace(item, recipe=ran[item.key].recipe_name) for item in report.iterations]
    changed = [key for key, item in ran.items() if item.is_changed]
    return replace(report, iterations=named), changed


def print_table(report: Report, console: Console, configured: int = 0) -> None:
    """Evaluation by iteration with 95 % intervals, the lift over the base policy, and what to type next."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title="Evaluation by iteration",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("policy", no_wrap=True)
    table.add_column("recipe")
    samples = {name: _samples(report, name) for name in report.sets}
    for name in report.sets:
        table.add_column(f"{name} mean@{samples[name]} [95 %]", justify="right", no_wrap=True)
        table.add_column("greedy", justify="right")
        table.add_column(f"pass@{samples[name]}", justify="right")
    table.add_column("reward", justify="right")
    table.add_column("length", justify="right")
    for item in thinned(report.iterations, ROWS_SHOWN):
        table.add_row(*map(Text, _cells(item, report.sets)))
    console.print(table)
    for line in (*_lift_lines(report), *_next_lines(report, configured)):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _cells(item: ReportedPolicy, sets: Iterable[str]) -> Iterator[str]:
    yield item.key
    yield item.recipe or "base"
    for name in sets:
        scores = item.scores.get(name, {})
        interval = ""
        if "mean_low" in scores and "mean_high" in scores:
            interval = f" [{scores['mean_low']:.3f}, {scores['mean_high']:.3f}]"
        yield f"{_shown(scores.get('mean'))}{interval}"
        yield _shown(scores.get("greedy"))
        yield _shown(scores.get("pass"))
    yield _shown(item.metrics.get("reward"))
    yield _shown(item.metrics.get("completions/mean_length"), 1)


def _lift_lines(report: Report) -> Iterator[str]:
    """One line per set: how much better the last policy is on the same prompts."""
    for name, lift in report.lift.items():
        base, last = report.evaluated[0], report.evaluated[-1]
        before, after = (item.scores.get(name, {}).get("mean") for item in (base, last))
        yield (
            f"{name}: {_shown(before)} → {_shown(after)} with {last.key}, "
            f"paired difference {lift.difference:+.3f} [{lift.low:+.3f}, {lift.high:+.3f}] (95 %)"
        )


def _next_lines(report: Report, configured: int) -> Iterator[str]:
    """Three things to type; while iterations of params.yaml are missing, how to go on with those comes first."""
    done = sum(item.step > 0 for item in report.iterations)
    count = max(done, configured)
    more = count + max(4, count // 2)
    activate, python = _environment()
    load = "import rollbook; print(rollbook.load('rollouts', join=['scores']))"
    commands = {
        "curves, iterations and rollouts in MLflow": (
            "make ui" if source_root(Path()) else f"{activate}rollbook ui"
        ),
        **(
            {f"{done} of {count} iterations are done; the rest": f"{activate}dvc repro"}
            if done < count
            else {
                f"{more - count} more, and only those": f"{activate}rollbook iterate {more} && dvc repro"
            }
        ),
        "every rollout with its reward": f'{python} -c "{load}"',
    }
    width = max(map(len, commands))
    yield ""
    yield "Next:"
    yield from (f"  {purpose:<{width}}  {command}" for purpose, command in commands.items())


def _environment() -> tuple[str, str]:
    """What makes `rollbook` and `python` work in the user's shell: nothing, if the environment is active there."""
    folder = Path(sys.prefix)
    if os.environ.get("VIRTUAL_ENV") or sys.prefix == sys.base_prefix:
        return "", "python"
    shown = os.path.relpath(folder) if folder.is_relative_to(Path.cwd()) else str(folder)
    return f"source {shown}/bin/activate && ", f"{shown}/bin/python"


def _samples(report: Report, name: str) -> int:
    return int(max(item.scores.get(name, {}).get("samples", 0) for item in report.evaluated))


def _shown(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:.{digits}f}"
