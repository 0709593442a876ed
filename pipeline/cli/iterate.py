"""`rollbook iterate N`: extends params.yaml; `dvc repro` then trains what is new."""

from __future__ import annotations

import re
from typing import Any

import click

from pipeline.atomic import replacing
from pipeline.config import BASE_KEY, PARAMS_FILE, Params
from pipeline.errors import ConfigError, Problem, nearest
from pipeline.params import read_params


@click.command()
@click.argument("count", type=click.IntRange(min=1), metavar="N")
@click.option("--recipe", help="Recipe of the new iterations; default: that of the last one.")
def iterate(count: int, recipe: str | None) -> None:
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
    new = next_iterations(params, count, recipe)
    if not new:
        click.echo(f"params.yaml has {len(params.iterations)} iterations already; nothing to add")
        return
    text = with_iterations(PARAMS_FILE.read_text(encoding="utf-8"), new)
    with replacing(PARAMS_FILE) as temporary:
        temporary.write_text(text, encoding="utf-8")
    click.echo(
        f"added {', '.join(new)} ({next(iter(new.values()))['recipe']}); `dvc repro` trains them"
    )


def next_iterations(params: Params, count: int, recipe: str | None) -> dict[str, dict[str, str]]:
    """The iterations that are missing to have `count` in all; they continue the last one in the file."""
    last = list(params.iterations)[-1] if params.iterations else BASE_KEY
    settings = params.iterations.get(last)
    recipe = recipe or (settings.recipe if settings else next(iter(params.recipes)))
    reference = settings.reference if settings else BASE_KEY
    letters, digits = re.fullmatch(r"([A-Za-z]+)([0-9]{4})", last).groups()  # type: ignore[union-attr]
    new: dict[str, dict[str, str]] = {}
    number, previous = int(digits), last
    while len(params.iterations) + len(new) < count:
        number += 1
        if number > 9999:
            raise ConfigError(
                [
                    Problem(
                        "iterations",
                        "keys have four digits, so 9999 is the last iteration of a chain",
                    )
                ]
            )
        key = f"{letters}{number:04d}"
        if key in params.iterations:
            raise ConfigError(
                [
                    Problem(
                        f"iterations.{key}",
                        f"exists already, but {previous} is the last in the file",
                    )
                ]
            )
        new[key] = {"previous": previous, "recipe": recipe, "reference": reference}
        previous = key
    return new


def with_iterations(text: str, new: dict[str, dict[str, str]]) -> str:
    """The text of params.yaml with iterations added behind the last one; everything else stays as it is."""
    from ruamel.yaml import YAML

    root: Any = YAML().compose(text)
    section = next((value for key, value in root.value if key.value == "iterations"), None)
    entries = {
        key: f"{{{', '.join(f'{k}: {v}' for k, v in item.items())}}}" for key, item in new.items()
    }
    if section is None:
        return "\n".join([text.rstrip("\n"), "", "iterations:", *_lines(entries, 2), ""])
    start, end = section.start_mark.index, section.end_mark.index
    if not section.value:
        return f"{text[:start].rstrip(' ')}\n" + "\n".join(_lines(entries, 2)) + text[end:]
    if section.flow_style:
        added = "".join(f", {key}: {entry}" for key, entry in entries.items())
        return text[: end - 1] + added + text[end - 1 :]
    lines = text.splitlines()
    place = _last_line(section) + 1
    indent = section.value[-1][0].start_mark.column
    return "\n".join([*lines[:place], *_lines(entries, indent), *lines[place:], ""])


def _lines(entries: dict[str, str], indent: int) -> list[str]:
    return [f"{' ' * indent}{key}: {entry}" for key, entry in entries.items()]


def _last_line(node: Any) -> int:
    """Line of the last thing written in a YAML node; a block's own end mark lies behind the comments after it."""
    if isinstance(node.value, str) or node.flow_style or not node.value:
        return int(node.end_mark.line)
    return _last_line(node.value[-1][1])
