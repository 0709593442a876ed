"""`rollbook probe`."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING

import click

from rollbook.cli.console import quoted
from rollbook.cli.specs import reward_of
from rollbook.core.errors import ConfigError, Problem, nearest

if TYPE_CHECKING:
    from rollbook.components.rewards.base import Reward
    from rollbook.project.run.run import Run
    from rollbook.rl.probing import Case, Probed

COMMAND = "rollbook probe"
SHOWN_PER_KIND = 1
SHOWN_ROLLOUTS = 5
SHOULD = {True: "reward", False: "no reward", None: "either"}


def _finite(context: click.Context, option: click.Parameter, value: float) -> float:
    """Nothing is above NaN, so that every right answer would look like a false negative."""
    if not isfinite(value):
        raise click.BadParameter(f"{value} is not a finite number", context, option)
    return value


@click.command()
@click.argument("reward")
@click.option("--iteration", metavar="KEY", help="Whose prompts and rollouts; default: the last.")
@click.option("--prompts", default=8, show_default=True, type=click.IntRange(1), help="How many.")
@click.option(
    "--rollouts", default=500, show_default=True, type=click.IntRange(0), help="How many at most."
)
@click.option(
    "--above",
    default=0.5,
    show_default=True,
    callback=_finite,
    help="A reward above this says: right.",
)
def probe(reward: str, iteration: str | None, prompts: int, rollouts: int, above: float) -> None:
    """Try to fool REWARD before a policy does, on made-up answers and on stored rollouts.

    REWARD is a name, name:weight, my_rewards.py:f, or a mapping such as '{name: format, pattern: boxed}'. Prompts are
    those of the project, or a few built-in ones where it has none yet. A reward for the layout alone rewards wrong
    answers by intent: read its table by kind.

    Example: rollbook probe math_answer
    """
    from rollbook.project.run.run import Run
    from rollbook.rl import probing

    chosen, run = reward_of(reward, COMMAND), Run()
    key = _iteration(run, iteration)
    table = run.table("prompts", key).checked() if key else None
    asked = probing.stored_prompts(table, prompts) if key else probing.built_in_prompts()
    whose = f"{len(asked)} prompts of {key}" if key else f"{len(asked)} built-in prompts"
    cases = [case for prompt in asked for case in probing.cases_of(prompt)]
    _show(f"{chosen.column} on {whose}", probing.probe(chosen, cases), above, SHOWN_PER_KIND)
    if key and rollouts:
        stored = probing.stored_cases(table, run.table("rollouts", key).checked(), rollouts)
        if stored:
            _show_stored(chosen, stored, key, above)


def _iteration(run: Run, wanted: str | None) -> str | None:
    """The iteration whose tables are read; None if there are none and none was asked for.

    Raises:
        ConfigError: if it is not one of params.yaml, or has no rollouts yet.
    """
    from rollbook.core.ids import PARAMS_FILE

    if wanted is None and not PARAMS_FILE.exists():
        return None
    keys = [
        key
        for key in run.params.every_iteration
        if all(run.has(kind, key) for kind in ("prompts", "rollouts"))
    ]
    if wanted is not None and wanted not in keys:
        hint = nearest(wanted, keys)
        raise ConfigError([Problem("--iteration", f"{wanted!r} has no rollouts; {hint}")], COMMAND)
    return wanted or (keys[-1] if keys else None)


def _show(title: str, findings: Sequence[Probed], above: float, examples: int) -> None:
    """Counts by kind, then what is false with rows that show it."""
    from rich.text import Text

    from rollbook.cli.console import show, table
    from rollbook.rl.probing import counts

    made = table("answer", "should be", "rewarded", "of", "false", "not applicable", "errors")
    should = {each.case.kind: SHOULD[each.case.right] for each in findings}
    for kind, count in counts(findings, above).items():
        names = ("rewarded", "rows", "false", "no reward", "errors")
        made.add_row(Text(kind), should[kind], *(str(count[name]) for name in names))
    show(title, made)
    _show_false(findings, above, examples)


def _show_stored(reward: Reward, cases: Sequence[Case], key: str | None, above: float) -> None:
    from rollbook.rl.probing import probe as ask

    findings = ask(reward, cases)
    sure = {right: sum(case.right is right for case in cases) for right in (True, False)}
    click.echo("")
    click.echo(
        f"{reward.column} on {len(cases)} stored rollouts of {key}: {sure[True]} surely right (nothing but the "
        f"reference answer), {sure[False]} surely wrong (it occurs nowhere), the rest is not judged"
    )
    _show_false(findings, above, SHOWN_ROLLOUTS)


def _show_false(findings: Sequence[Probed], above: float, examples: int) -> None:
    false = [each for each in findings if each.is_false(above)]
    for title, right in (("False positives", False), ("False negatives", True)):
        _show_rows(f"{title}: ", [each for each in false if each.case.right is right], examples)
    _show_rows("Errors: ", [each for each in findings if each.error is not None], examples)


def _show_rows(title: str, findings: Sequence[Probed], examples: int) -> None:
    """How many, and the first of each kind."""
    click.echo(f"{title}{len(findings) or 'none'}")
    shown: dict[str, int] = {}
    for each in findings:
        kind = each.case.kind
        shown[kind] = shown.get(kind, 0) + 1
        if shown[kind] <= examples:
            row = each.case.row
            said = each.error if each.error is not None else f"reward {each.reward:g}"
            click.echo(f"  {kind}: {quoted(row.text)} → {said}")
            click.echo(
                f"    reference answer {quoted(row.reference_answer)}, {row.rollout_id}, "
                f"prompt {quoted(row.messages[-1]['content'])}"
            )
