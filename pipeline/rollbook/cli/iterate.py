"""`rollbook iterate N`: extends params.yaml; `dvc repro` then trains what is new."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import click

from rollbook.core.errors import ConfigError, Problem, nearest
from rollbook.core.ids import BASE_KEY
from rollbook.core.yaml import YamlEntry, flow, with_entries
from rollbook.settings.config import Params
from rollbook.settings.params import read_params, read_text, write_text


@click.command()
@click.argument("count", type=click.IntRange(min=1), metavar="N")
@click.option("--recipe", help="Recipe of the new iterations; default: that of the last one.")
@click.option(
    "--evaluate-every",
    type=click.IntRange(min=1),
    metavar="K",
    help="Evaluate only new iterations whose number is a multiple of K; default: all.",
)
def iterate(count: int, recipe: str | None, evaluate_every: int | None) -> None:
    """Extend params.yaml to N iterations in all, keeping comments and layout.

    Example: rollbook iterate 12 && dvc repro
    """
    params = read_params()
    if recipe is not None and recipe not in params.recipes:
        raise ConfigError(
            [
                Problem(
                    "--recipe", f"there is no recipe {recipe!r}; {nearest(recipe, params.recipes)}"
                )
            ]
        )
    new = next_iterations(params, count, recipe, evaluate_every or 1)
    if not new:
        click.echo(f"there are {len(params.every_iteration)} iterations already; nothing to add")
        return
    write_text(with_iterations(read_text(), new))
    click.echo(
        f"added {', '.join(new)} ({next(iter(new.values()))['recipe']}); `dvc repro` trains them"
    )


def next_iterations(
    params: Params, count: int, recipe: str | None, evaluate_every: int = 1
) -> dict[str, dict[str, Any]]:
    """The iterations that are missing to have `count` in all, sealed ones among them; they continue the last one.

    Of the new ones, those whose number is a multiple of `evaluate_every` are evaluated.
    """
    known = params.every_iteration
    last = list(known)[-1] if known else BASE_KEY
    settings = known.get(last)
    recipe = recipe or (settings.recipe if settings else next(iter(params.recipes)))
    reference = settings.reference if settings else BASE_KEY
    letters, digits = re.fullmatch(r"([A-Za-z]+)([0-9]{4})", last).groups()  # type: ignore[union-attr]
    new: dict[str, dict[str, Any]] = {}
    previous = last
    for key in numbered(letters, int(digits) + 1, count - len(known)):
        if key in known:
            raise ConfigError(
                [
                    Problem(
                        f"iterations.{key}",
                        f"exists already, but {previous} is the last in the file",
                    )
                ]
            )
        new[key] = {"previous": previous, "recipe": recipe, "reference": reference}
        if int(key[-4:]) % evaluate_every:
            new[key]["evaluate"] = False
        previous = key
    return new


def numbered(letters: str, first: int, count: int) -> Iterator[str]:
    """Keys of `count` iterations that follow each other.

    Raises:
        ConfigError: beyond 9999.
    """
    for number in range(first, first + count):
        if number > 9999:
            raise ConfigError(
                [
                    Problem(
                        "iterations",
                        "keys have four digits, so 9999 is the last iteration of a chain",
                    )
                ]
            )
        yield f"{letters}{number:04d}"


def with_iterations(text: str, new: Mapping[str, Mapping[str, Any]]) -> str:
    """The text of params.yaml with iterations added behind the last one; everything else stays as it is."""
    return with_entries(
        text, "iterations", {key: YamlEntry(flow(item)) for key, item in new.items()}
    )
