"""`rollbook what-if`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rollbook.cli.specs import yaml_spec
from rollbook.core.errors import ConfigError, Problem, nearest

if TYPE_CHECKING:
    from rollbook.views.what_if import WhatIf

SHARES = ("clipped low", "clipped high", "gradient")
"""Beginnings of the names of numbers that are shown in percent."""


@click.command("what-if")
@click.argument("iteration")
@click.option("--loss", metavar="SPEC", help="A loss: its name, or {name: cispo, cap: 5.0}.")
@click.option("--estimator", metavar="SPEC", help="An advantage estimator, in the same form.")
@click.option("--recipe", metavar="R", help="Take the whole objective of this recipe.")
def what_if(iteration: str, loss: str | None, estimator: str | None, recipe: str | None) -> None:
    """Evaluate another loss or estimator on the stored tables of ITERATION, without a model.

    The policy is as each rollout was last seen in training, all kept rollouts are one step.

    Example: rollbook what-if i0003 --loss gspo
    """
    from rollbook.project.run.run import Run
    from rollbook.views.what_if import what_if as evaluate

    run = Run()
    params = run.params
    problems = []
    if iteration not in params.every_iteration:
        hint = nearest(iteration, params.every_iteration)
        problems.append(Problem("ITERATION", f"there is no iteration {iteration!r}; {hint}"))
    if recipe is not None and recipe not in params.recipes:
        hint = nearest(recipe, params.recipes)
        problems.append(Problem("--recipe", f"there is no recipe {recipe!r}; {hint}"))
    if not (loss or estimator or recipe):
        problems.append(Problem("", "say what should be otherwise: --loss, --estimator, --recipe"))
    if problems:
        raise ConfigError(problems, "rollbook what-if")
    found = evaluate(
        run,
        iteration,
        None if loss is None else yaml_spec("--loss", loss),
        None if estimator is None else yaml_spec("--estimator", estimator),
        recipe,
    )
    other = ", ".join(filter(None, (recipe, loss, estimator)))
    print_table(found, f"{iteration} as it was ({params.every_iteration[iteration].recipe})", other)


def print_table(found: WhatIf, was: str, other: str) -> None:
    """The numbers of both side by side."""
    from rollbook.cli.console import show, table

    shown = table("", was, f"with {other}")
    for name, value in found.was.numbers.items():
        shown.add_row(name, _number(name, value), _number(name, found.would_be.numbers[name]))
    for here, there in zip(found.was.lengths, found.would_be.lengths, strict=True):
        span = f"{here.least} to {here.most}" if here.least < here.most else f"{here.most}"
        label = f"gradient on completions of {span} tokens ({here.tokens:.0%} of tokens)"
        shown.add_row(
            label, _number("gradient", here.gradient), _number("gradient", there.gradient)
        )
    shown.add_row("advantages with the other sign", "", f"{found.sign_flips:.1%}")
    show("What if", shown)
    if found.changed:
        click.echo(
            f"params.yaml changed since ({', '.join(found.changed)}): the first column is what it says now"
        )
    if found.not_trained:
        click.echo(
            f"{found.not_trained} of {len(found.was.advantages)} kept rollouts were not computed in training "
            "(their gradient was 0), so their ratio counts as 1"
        )


def _number(name: str, value: float) -> str:
    if value != value:
        return "–"
    if name.startswith(SHARES):
        return f"{value:.1%}"
    return f"{value:d}" if isinstance(value, int) else f"{value:.4g}"
