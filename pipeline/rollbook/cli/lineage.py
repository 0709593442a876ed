"""`rollbook lineage`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from rollbook.cli.console import note_off_lock, refuse_elsewhere
from rollbook.core.errors import ConfigError, Problem
from rollbook.core.hashing import short
from rollbook.core.ids import BASE_KEY

if TYPE_CHECKING:
    from rollbook.views.lineage.links import Lineage, Link
    from rollbook.views.lineage.uses import Uses

COMMAND = "rollbook lineage"


@click.command()
@click.argument("policy", required=False)
@click.option("--uses", metavar="THING", help="The other way round; see above.")
@click.option("--json", "as_json", is_flag=True, help="Print the facts as JSON.")
@click.option("--mermaid", "as_mermaid", is_flag=True, help="Print a Mermaid graph.")
def lineage(policy: str | None, uses: str | None, as_json: bool, as_mermaid: bool) -> None:
    """Show what made POLICY, iteration by iteration back to its base: rollouts, rewards, settings, code, evaluation.

    POLICY is an iteration, the first digits of a policy's digest, or a policy folder. It need not be on this machine:
    everything is read from run_info.

    With --uses instead, show what used a THING, and which policies came of it: reward:NAME, data:NAME (a source, an
    evaluation set or a file), code:FILE or policy:POLICY.

    Example: rollbook lineage i0003

    Example: rollbook lineage --uses reward:numeric_answer
    """
    if policy is not None and uses is not None:
        raise ConfigError([Problem("", "say a POLICY or --uses THING, not both")], COMMAND)
    if not (policy or uses):
        raise ConfigError([Problem("", "say a POLICY, or --uses THING")], COMMAND)
    if as_mermaid and as_json:
        raise ConfigError(
            [Problem("--mermaid", "does not go with --json; leave one away")], COMMAND
        )
    refuse_elsewhere()
    if uses:
        _show_uses(uses, as_json, as_mermaid)
    elif policy:
        _show_lineage(policy, as_json, as_mermaid)


def _show_lineage(policy: str, as_json: bool, as_mermaid: bool) -> None:
    from rollbook.project.ancestry import ancestry_of, policy_digest
    from rollbook.project.run.run import Run
    from rollbook.views.lineage.graph import mermaid
    from rollbook.views.lineage.links import lineage_of

    run = Run()
    recipes = {key: item.recipe for key, item in run.params.every_iteration.items()}
    found = lineage_of(run, ancestry_of(run, policy_digest(run, policy)), recipes)
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=1))
    elif as_mermaid:
        click.echo(mermaid(found), nl=False)
    else:
        click.echo("\n".join(_lines(found)))
    note_off_lock({BASE_KEY, *(link.key for link in found.links)}, run)


def _lines(found: Lineage) -> Iterator[str]:
    from rollbook.views.lineage.words import evaluation_words, part_words

    count = len(found.links)
    rows = sum(link.rows for link in found.links)
    yield (
        f"policy {found.key} {short(found.policy)}: {count} iteration{'' if count == 1 else 's'} and "
        f"{rows:,} rollouts from base {found.base}"
    )
    befores = [None, *found.links[:-1]]
    for link, before in reversed(list(zip(found.links, befores, strict=False))):
        yield ""
        yield from _link_lines(link, before)
    sources = ", ".join(map(part_words, found.sources))
    yield ""
    yield f"{BASE_KEY}  base policy {found.base} {short(found.base_policy)}"
    yield _line("prompts", sources)
    if found.base_evaluation:
        yield _line("evaluated", evaluation_words(found.base_evaluation))


def _link_lines(link: Link, before: Link | None) -> Iterator[str]:
    from rollbook.views.lineage.words import link_words

    recipe = f", recipe {link.recipe}" if link.recipe else ""
    yield (
        f"{link.key}  policy {short(link.policy)}, from {link.previous} {short(link.previous_policy)}{recipe}"
    )
    yield from (_line(name, text) for name, text in link_words(link, before))


def _line(name: str, text: str) -> str:
    return f"  {name:<11}{text}"


def _show_uses(thing: str, as_json: bool, as_mermaid: bool) -> None:
    from rollbook.project.run.run import Run
    from rollbook.views.lineage.graph import mermaid_of_uses
    from rollbook.views.lineage.uses import uses_of

    run = Run()
    found = uses_of(run, thing)
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=1))
    elif as_mermaid:
        click.echo(mermaid_of_uses(found), nl=False)
    else:
        click.echo("\n".join(_use_lines(found)))
    note_off_lock({use.key for use in found.uses}, run)


def _use_lines(found: Uses) -> Iterator[str]:
    yield found.thing
    width = max((len(use.step) for use in found.uses), default=0)
    yield from (f"  {use.step:<{width}}  {use.how}" for use in found.uses)
    if not found.uses:
        yield "  used by no step"
    policies = ", ".join(found.policies) or "none"
    yield f"policies made with it, or from one that was: {policies}"
