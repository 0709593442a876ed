"""What commands have in common: where they run, which numbers they take, and how they print tables and notes."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from rollbook.core.errors import RollbookError
from rollbook.core.ids import PARAMS_FILE
from rollbook.core.text import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from rollbook.project.run.store import Store

WIDTH_IN_FILES = 120
SHOWN_CHARACTERS = 70

Row = TypeVar("Row")


def refuse_elsewhere() -> None:
    """Raises RollbookError unless the current folder is a project's: most paths are relative to it."""
    from rollbook.tables.artifacts import ROOT

    if PARAMS_FILE.exists() or ROOT.exists():
        return
    here = Path.cwd()
    above = next((each for each in here.parents if (each / PARAMS_FILE).exists()), None)
    hint = "run from the project's folder" + (f": cd {above}" if above else "")
    raise RollbookError(f"no {PARAMS_FILE} and no {ROOT}/ in {here}", hint)


def refuse_not_finite(
    _context: click.Context, _option: click.Parameter, value: float | None
) -> float | None:
    """For an option of a distance: one that nothing could be apart by, or everything; click.FloatRange takes both."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is no distance; allowed: 0 and finite numbers above it")
    return value


def note_off_lock(keys: Collection[str], run: Store | None = None) -> None:
    """Says, beside what a command prints, that the workspace holds other runs of iterations than dvc.lock names."""
    from rollbook.project.off_lock import off_lock, said_of
    from rollbook.project.run.run import Run

    if line := said_of(off_lock(run or Run(), keys)):
        click.echo(f"note: {line}", err=True)


def console() -> Console:
    """Where tables go; without a terminal they are WIDTH_IN_FILES wide."""
    from rich.console import Console

    found = Console(highlight=False)
    return found if found.is_terminal else Console(width=WIDTH_IN_FILES, highlight=False)


def table(first: str, *numbers: str) -> Table:
    """A table of plain text: names on the left, numbers on the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    made.add_column(Text(first))
    for name in numbers:
        made.add_column(Text(name), justify="right")
    return made


def show(title: str, shown: Table) -> None:
    """Prints a table under its title."""
    where = console()
    where.print(title, markup=False, soft_wrap=True)
    where.print(shown)


def thinned(items: Sequence[Row], limit: int) -> list[Row]:
    """At most `limit` rows, evenly spaced, the first and the last among them."""
    if len(items) <= limit:
        return list(items)
    return [items[round(place * (len(items) - 1) / (limit - 1))] for place in range(limit)]


def quoted(text: str | None, limit: int = SHOWN_CHARACTERS) -> str:
    """One line in quotes, both ends of a long text; what has no look is written as `rollbook.core.text` does."""
    if text is None:
        return "none"
    shown = f"'{visible(text)}'"
    if len(shown) <= limit:
        return shown
    half = limit // 2
    return f"{shown[:half]}…{shown[-half:]} ({len(text)} characters)"
