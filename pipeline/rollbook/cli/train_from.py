"""`rollbook train-from KEY --recipe R`: a branch that goes on from a stored policy under another recipe."""

from __future__ import annotations

import re

import click

from rollbook.cli.iterate import numbered, with_iterations
from rollbook.core.errors import ConfigError, Problem, nearest
from rollbook.core.ids import BASE_KEY
from rollbook.settings.config import Params
from rollbook.settings.params import read_params, read_text, write_text


@click.command("train-from")
@click.argument("iteration")
@click.option("--recipe", required=True, metavar="R", help="Recipe of the new iterations.")
@click.option(
    "--iterations", "count", type=click.IntRange(min=1), default=1, show_default=True, metavar="N"
)
def train_from(iteration: str, recipe: str, count: int) -> None:
    """Add N iterations to params.yaml that go on from ITERATION under another recipe, beside those that follow it now.

    They have letters of their own and continue the count. Nothing that is trained runs again.

    Example: rollbook train-from i0003 --recipe strict --iterations 2 && dvc repro
    """
    params = read_params()
    new = branch(params, iteration, recipe, count)
    write_text(with_iterations(read_text(), new))
    click.echo(f"added {', '.join(new)} after {iteration} ({recipe}); `dvc repro` trains them")


def branch(params: Params, start: str, recipe: str, count: int) -> dict[str, dict[str, str]]:
    """The iterations of a branch: the first follows `start`, whose reference policy stays.

    Raises:
        ConfigError: for an iteration or recipe that does not exist.
    """
    known, problems = [BASE_KEY, *params.every_iteration], []
    if start not in known:
        hint = nearest(start, known)
        problems.append(Problem("ITERATION", f"there is no iteration {start!r}; {hint}"))
    if recipe not in params.recipes:
        hint = nearest(recipe, params.recipes)
        problems.append(Problem("--recipe", f"there is no recipe {recipe!r}; {hint}"))
    item = params.every_iteration.get(start)
    reference = BASE_KEY if item is None else item.reference
    for policy in dict.fromkeys((start, reference)):
        if policy in params.sealed and not params.sealed[policy].kept:
            mend = f"`rollbook seal --rebuild {policy}` makes it again"
            problems.append(Problem("ITERATION", f"the policy of {policy} was pruned; {mend}"))
    if problems:
        raise ConfigError(problems, "rollbook train-from")
    new: dict[str, dict[str, str]] = {}
    previous = start
    for key in numbered(_letters(recipe, known), int(start[-4:]) + 1, count):
        new[key] = {"previous": previous, "recipe": recipe, "reference": reference}
        previous = key
    return new


def _letters(recipe: str, known: list[str]) -> str:
    """The recipe's letters; if a branch has them already, with b, c, … behind."""
    taken = {key[:-4] for key in known}
    own = re.sub("[^A-Za-z]", "", recipe) or "branch"
    endings = ["", *"bcdefghijklmnopqrstuvwxyz"]
    free = (own + "z" * rest + ending for rest in range(len(taken) + 1) for ending in endings)
    return next(letters for letters in free if letters not in taken)
