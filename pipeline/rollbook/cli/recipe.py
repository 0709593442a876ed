"""`rollbook recipe add` and `rollbook recipe diff`."""

from __future__ import annotations

import re
from collections.abc import Sequence

import click

from rollbook.core.errors import ConfigError, Problem, RollbookError, nearest
from rollbook.core.ids import PARAMS_FILE
from rollbook.core.yaml import WORDS, YamlEntry, flow, parse_yaml, read_yaml, with_entries
from rollbook.project.run.run import Run
from rollbook.rl.recipe_numbers import (
    GROUPS,
    LENGTHS,
    RATIOS,
    example_advantages,
    pushes,
    token_weights,
)
from rollbook.settings.params import (
    parse_params,
    read_params,
    read_text,
    resolve_recipes,
    write_text,
)
from rollbook.settings.preset_recipe import Task, preset_recipe
from rollbook.settings.presets import Preset, presets, read_preset
from rollbook.settings.recipe import Recipe
from rollbook.settings.recipe_words import SettingDifference, differences

NAME = re.compile(r"[A-Za-z_][\w-]*")
PLACEHOLDER = "numeric_answer"
"""Stands for the task's reward where presets are compared outside of a project."""


@click.group()
def recipe() -> None:
    """Add published recipes to params.yaml, and compare recipes.

    Example: rollbook recipe add --list
    """


@recipe.command()
@click.argument("name", required=False)
@click.option("--preset", help="Published recipe to write; --list shows them.")
@click.option("--like", metavar="RECIPE", help="Take the sizes from this recipe of params.yaml.")
@click.option("--list", "listed", is_flag=True, help="Show all presets.")
def add(name: str | None, preset: str | None, like: str | None, listed: bool) -> None:
    """Write a published recipe into params.yaml as NAME, every value with its source.

    What is rewarded and how prompts are written come from the first recipe there. With --like they come from RECIPE,
    and so do the sizes: prompts, group size, token limits, engine, optimizer steps, learning rate, memory. What a
    preset counts in tokens is scaled to RECIPE's limit.

    Example: rollbook recipe add gspo --preset gspo --like grpo
    """
    if listed or name is None:
        width = max(map(len, presets()))
        for each in map(read_preset, presets()):
            click.echo(f"{each.name:<{width}}  {each.title}: {each.summary}")
        return
    if preset is None:
        problem = Problem("--preset", f"is required; {nearest(name, presets())}")
        raise ConfigError([problem], "rollbook recipe add")
    published, task = read_preset(preset), _task(name, like)
    text = preset_recipe(published, task, sizes=like is not None)
    changed = with_recipe(read_text(), name, text, published)
    source = f"{PARAMS_FILE} with {name}"
    params = parse_params(parse_yaml(changed, source), source, Run().sealed)
    write_text(changed)
    rewards = ", ".join(
        reward.column.removeprefix("reward_")
        for reward in params.recipes[name].score_rollouts.rewards
    )
    click.echo(f"added recipe {name} to {PARAMS_FILE}: {published.title}. {published.summary}")
    click.echo(f"rewards: {rewards}; sizes: {like if like is not None else 'those of the preset'}")
    if published.not_expressed:
        click.echo(f"not expressed: {published.not_expressed}")
    more = len(params.every_iteration) + 4
    click.echo(f"next: rollbook recipe diff {task.name} {name}")
    click.echo(f"      rollbook iterate {more} --recipe {name} && dvc repro")


def with_recipe(text: str, name: str, sections: str, preset: Preset) -> str:
    """The text of params.yaml with a recipe behind the last one, under a comment that names its preset."""
    settings = parse_yaml(sections, name)
    lines = [
        "",
        *(f"# {line}" for line in preset.header),
        f"{name}:",
        *(f"  {line}" for line in sections.splitlines()),
    ]
    return with_entries(text, "recipes", {name: YamlEntry(flow(settings), lines)})


def _task(name: str, like: str | None) -> Task:
    """The recipe whose task is taken.

    Raises:
        ConfigError: if `name` is taken or no name, or there is no recipe to take the task from.
    """
    raw, params = read_yaml(PARAMS_FILE), read_params()
    problems = []
    if not NAME.fullmatch(name) or name.lower() in WORDS:
        problems.append(
            Problem("NAME", f"a recipe's name is a word of letters, digits, _ and - (got {name!r})")
        )
    if name in params.recipes:
        problems.append(Problem(f"recipes.{name}", "exists already; choose another name"))
    if like is not None and like not in params.recipes:
        problems.append(
            Problem("--like", f"there is no recipe {like!r}; {nearest(like, params.recipes)}")
        )
    if not params.recipes:
        problems.append(Problem("recipes", "there is none to take rewards from; write one first"))
    if problems:
        raise ConfigError(problems)
    chosen = like if like is not None else next(iter(params.recipes))
    return Task(chosen, resolve_recipes(raw["recipes"])[0][chosen], params.recipes[chosen])


@recipe.command()
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
def diff(first: str, second: str) -> None:
    """Show how two recipes differ in the objective, in words and in numbers.

    A and B are recipes of params.yaml or names of presets.

    Example: rollbook recipe diff grpo dapo
    """
    names, recipes = (first, second), (_named(first), _named(second))
    found = differences(*recipes)
    if not found:
        click.echo(f"{first} and {second} are the same")
        return
    for title, is_size in (("Objective", False), ("Sizes", True)):
        if rows := [item for item in found if item.is_size == is_size]:
            show_settings(title, names, rows)
    _show_advantages(names, recipes)
    try:
        _show_gradients(names, recipes)
    except RollbookError as error:
        click.echo(str(error))


def _named(name: str) -> Recipe:
    """A recipe of params.yaml, or else a preset with the rewards of the first recipe there.

    Raises:
        ConfigError: if there is neither.
    """
    params = read_params() if PARAMS_FILE.exists() else None
    own = params.recipes if params is not None else {}
    if name in own:
        return own[name]
    if name not in presets():
        hint = nearest(name, {*own, *presets()})
        raise ConfigError(
            [Problem("", f"there is no recipe or preset {name!r}; {hint}")], "rollbook recipe diff"
        )
    settings = dict(read_preset(name).settings)
    extra = settings.get("score_rollouts", {}).get("rewards", [])
    task = next(iter(own.values())).score_rollouts.rewards if own else [PLACEHOLDER]
    labels = [reward.get("label") or reward["name"] for reward in extra]
    kept = [each for each in task if isinstance(each, str) or each.title not in labels]
    return Recipe.model_validate({**settings, "score_rollouts": {"rewards": [*kept, *extra]}})


def show_settings(title: str, names: tuple[str, str], rows: Sequence[SettingDifference]) -> None:
    """Prints settings that differ with what they mean; `names` stand above the two values."""
    from rich.text import Text

    from rollbook.cli.console import show, table

    made = table("setting", *names)
    made.add_column("what it means", ratio=1)
    for item in rows:
        made.add_row(*map(Text, (item.place, *item.values, item.meaning)))
    show(title, made)


def _show_advantages(names: tuple[str, str], recipes: tuple[Recipe, Recipe]) -> None:
    from rollbook.cli.console import show, table

    for rewards in GROUPS:
        made, notes = table("reward", *(f"{value:g}" for value in rewards)), []
        for name, each in zip(names, recipes, strict=True):
            found = example_advantages(each, rewards)
            if isinstance(found, str):
                notes.append(f"{name}: {found}")
            else:
                made.add_row(name, *(f"{value:+.2f}" for value in found))
        show("Advantages of a group of answers", made)
        for note in notes:
            click.echo(note)


def _show_gradients(names: tuple[str, str], recipes: tuple[Recipe, Recipe]) -> None:
    from rollbook.cli.console import show, table

    short, long = LENGTHS
    made = table("one token of a completion", f"of {short} tokens", f"of {long} tokens", "ratio")
    for name, each in zip(names, recipes, strict=True):
        one, other = token_weights(each)
        made.add_row(name, f"{one:.3g}", f"{other:.3g}", f"{one / other:.3g}" if other else "–")
    show("Weight |∂loss/∂log-prob| in a step of two completions, ratios 1, advantages 1", made)
    made = table("ratio", *(f"{value:g}" for value in RATIOS))
    for advantage in (1.0, -1.0):
        for name, each in zip(names, recipes, strict=True):
            if not each.update_policy.loss.needs_pairs:
                values = (f"{round(value, 3) + 0.0:+.3f}" for value in pushes(each, advantage))
                made.add_row(f"{name}, A = {advantage:+g}", *values)
    if made.row_count:
        show(
            "Push −∂loss/∂log-prob on a token, denominators left out: above 0 up, below 0 down",
            made,
        )
    for name, each in zip(names, recipes, strict=True):
        if (loss := each.update_policy.loss).pools_rows:
            click.echo(
                f"{name}: {loss.name} compares the tokens of a step, which one alone does not show"
            )
        if loss.needs_pairs:
            click.echo(
                f"{name}: {loss.name} compares two answers with the reference, so ratio and advantage do not count; of "
                "the completions above the first is chosen and the second rejected"
            )
