"""`rollbook compare`."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from rollbook.cli.console import note_off_lock, refuse_elsewhere
from rollbook.core.ids import BASE_KEY

if TYPE_CHECKING:
    from rich.table import Table

    from rollbook.views.compare.comparison import Comparison, Test
    from rollbook.views.compare.sides import Row, Side

EVALUATION = {name: name for name in ("mean", "greedy", "pass")}
TRAINING = {"reward": "reward", "completion_length": "length", "entropy": "entropy"}
"""Column of curves.csv: what it is called here."""
ROWS_SHOWN = 24
SMALLEST_P = 0.001
ANSWER_CHARACTERS = 48
TEXT_COLUMNS = (0, 1, 4, 5)
"""Of the prompts that changed sides."""


@click.command()
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option(
    "--prompts",
    default=10,
    show_default=True,
    type=click.IntRange(0),
    help="Show at most so many prompts that changed sides.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def compare(first: str, second: str, prompts: int, as_json: bool) -> None:
    """Compare two policies: settings, curves, and their final evaluations on the same prompts.

    A and B each name an iteration of params.yaml (its chain of policies is what is compared), a recipe, a git revision,
    an experiment of DVC, `workspace`, or REVISION:ITERATION and REVISION:RECIPE. Of a recipe the latest policy that was
    trained under it and evaluated is taken, of a revision alone the last evaluated policy. A branch that is called like
    a recipe is refs/heads/NAME.

    \b
    Examples: rollbook compare i0003 i0006
              rollbook compare i0006 gspo0004
              rollbook compare grpo gspo
              rollbook compare HEAD~1 workspace
              rollbook compare main:i0003 my-experiment
    """
    from rollbook.project.run.run import Run
    from rollbook.views.compare.comparison import compare as compared
    from rollbook.views.compare.sides import side_of

    refuse_elsewhere()
    run = Run()
    found = compared(side_of(run, first), side_of(run, second), prompts)
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=1, ensure_ascii=False))
    else:
        print_comparison(found)
    workspace = [side for side in found.sides if side.revision.is_workspace]
    note_off_lock({key for side in workspace for key in (BASE_KEY, *side.chain)}, run)


def print_comparison(found: Comparison) -> None:
    """The comparison as tables."""
    from rollbook.cli.console import show

    for letter, side in zip("AB", found.sides, strict=True):
        recipes = dict.fromkeys(side.params.every_iteration[key].recipe for key in side.chain)
        count = len(side.chain)
        made = f"{count} iteration{'s' if count != 1 else ''} under {', '.join(recipes)}"
        click.echo(f"{letter}  {side.shown}: {made if count else 'the base policy'}")
    _print_shared(found)
    click.echo("")
    _print_settings(found)
    for name in _sets(found.sides):
        show(f"Evaluation by iteration: {name}", _curves(found.sides, name, EVALUATION))
    show("Training by iteration", _curves(found.sides, None, TRAINING))
    _print_tests(found)
    _print_changed(found)


def _print_shared(found: Comparison) -> None:
    from rollbook.project.ancestry import span

    if not found.shared:
        return
    one, two = (side.chain for side in found.sides)
    shared = list(found.shared)
    if shared == one == two:
        click.echo("The policies are the same, byte for byte.")
    elif shared == one:
        click.echo(f"B was trained on from A: what they share are the policies of {span(shared)}.")
    elif shared == two:
        click.echo(f"A was trained on from B: what they share are the policies of {span(shared)}.")
    else:
        click.echo(f"The policies of {span(shared)} are the same in both, byte for byte.")


def _print_settings(found: Comparison) -> None:
    from rollbook.cli.recipe import show_settings

    if found.settings:
        show_settings("Settings that differ outside of the recipes", ("A", "B"), found.settings)
    for each in found.stretches:
        steps = (
            f"Step {each.first}"
            if each.first == each.last
            else f"Steps {each.first} to {each.last}"
        )
        if each.settings:
            heads = tuple(
                f"{letter}: {name}" for letter, name in zip("AB", each.names, strict=True)
            )
            show_settings(f"{steps}: recipes differ in", (heads[0], heads[1]), each.settings)
        else:
            names = " and ".join(dict.fromkeys(each.names))
            click.echo(f"{steps}: the same recipe, {names}\n")
    if found.last_recipes:
        one, two = found.sides
        heads = (f"A: {one.recipe}", f"B: {two.recipe}")
        show_settings(f"Recipes of {one.key} and {two.key} differ in", heads, found.last_recipes)
    if not found.stretches and not found.settings:
        click.echo("No step in common, and no setting that differs.\n")


def _sets(sides: Sequence[Side]) -> list[str]:
    return list(dict.fromkeys(row["set"] for side in sides for row in side.rows if row["set"]))


def _curves(sides: Sequence[Side], name: str | None, columns: dict[str, str]) -> Table:
    """Both by step: the columns of a set, or without a set those of training."""
    from rollbook.cli.console import table, thinned

    by_step: list[dict[int, Row]] = [{}, {}]
    for found, side in zip(by_step, sides, strict=True):
        for row in side.rows:
            if name is None or row["set"] == name:
                found.setdefault(row["step"], row)
    steps = sorted({*by_step[0], *by_step[1]} - (set() if name else {0}))
    heads = [f"{shown} {letter}" for shown in columns.values() for letter in "AB"]
    made = table("step", "A", "B", *heads)
    for step in thinned(steps, ROWS_SHOWN):
        rows = [found.get(step, {}) for found in by_step]
        keys = [str(row.get("iteration", "")) for row in rows]
        made.add_row(
            str(step), *keys, *(_shown(row.get(column)) for column in columns for row in rows)
        )
    return made


def _print_tests(found: Comparison) -> None:
    from rich.text import Text

    from rollbook.cli.console import show, table

    if not found.tests:
        click.echo("Final evaluation: no set in common\n")
        return
    heads = ("prompts in common", "A", "B", "B − A [95 %]", "p", "better", "worse")
    made = table("set", *heads)
    for each in found.tests:
        before, after, common = each.prompts
        whole = before == after == common
        made.add_row(
            Text(each.set),
            f"{common}" if whole else f"{common} of {before} and {after}",
            *(_shown(mean) for mean in each.means),
            _interval(each),
            _p_value(each),
            str(each.better),
            str(each.worse),
        )
    keys = " and ".join(side.shown for side in found.sides)
    show(f"Final evaluation on the same prompts, sampled answers: {keys}", made)
    if not found.evaluated_alike:
        click.echo("evaluate_policy differs, so this compares how they were asked as well\n")


def _print_changed(found: Comparison) -> None:
    from rich.text import Text

    from rollbook.cli.console import quoted, show, table
    from rollbook.rl.evaluation import RIGHT_FROM

    counts = f"{found.became_right} right in B only, {found.became_wrong} right in A only"
    title = f"Prompts that changed sides: {counts} (right: mean reward at least {RIGHT_FROM:g})"
    if not found.changed:
        click.echo(title)
        return
    made = table("prompt", "reference answer", "mean A", "mean B", "answer A", "answer B")
    for place in TEXT_COLUMNS:
        made.columns[place].justify, made.columns[place].overflow = "left", "fold"
    for each in found.changed:
        one, two = each.answers
        texts = (quoted(answer.text, ANSWER_CHARACTERS) for answer in each.answers)
        made.add_row(
            Text(quoted(each.prompt, ANSWER_CHARACTERS)),
            Text(quoted(each.reference_answer, ANSWER_CHARACTERS)),
            f"{one.mean:.2f}",
            f"{two.mean:.2f}",
            *map(Text, texts),
        )
    show(title, made)


def _p_value(test: Test) -> str:
    return "<0.001" if test.p_value < SMALLEST_P else _shown(test.p_value)


def _interval(test: Test) -> str:
    if not math.isfinite(test.difference):
        return ""
    if not math.isfinite(test.low):
        return f"{test.difference:+.3f}"
    return f"{test.difference:+.3f} [{test.low:+.3f}, {test.high:+.3f}]"


def _shown(value: float | None) -> str:
    return "" if value is None or not math.isfinite(value) else f"{value:.3f}"
