"""`rollbook lineage`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import click

from pipeline.config import BASE_KEY
from pipeline.errors import ConfigError, Problem
from pipeline.hashing import short
from pipeline.params import read_params

if TYPE_CHECKING:
    from pipeline.tracing.links import Lineage, Link, Part
    from pipeline.tracing.uses import Uses

COMMAND = "rollbook lineage"
SHOWN_CHANGES = 8
SHOWN_SETTINGS = 3
"""Settings shown behind a component."""


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
    if (policy is None) == (uses is None):
        raise ConfigError([Problem("", "say a POLICY, or --uses THING")], COMMAND)
    if as_mermaid and as_json:
        raise ConfigError(
            [Problem("--mermaid", "does not go with --json; leave one away")], COMMAND
        )
    if uses is not None:
        _show_uses(uses, as_json, as_mermaid)
    elif policy is not None:
        _show_lineage(policy, as_json, as_mermaid)


def _show_lineage(policy: str, as_json: bool, as_mermaid: bool) -> None:
    from pipeline.ancestry import ancestry_of, policy_digest
    from pipeline.tracing.graph import mermaid
    from pipeline.tracing.links import lineage_of

    recipes = {key: item.recipe for key, item in read_params().every_iteration.items()}
    found = lineage_of(ancestry_of(policy_digest(policy)), recipes)
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=1))
    elif as_mermaid:
        click.echo(mermaid(found), nl=False)
    else:
        click.echo("\n".join(_lines(found)))


def _lines(found: Lineage) -> Iterator[str]:
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
    sources = ", ".join(map(_shown, found.sources))
    yield ""
    yield f"{BASE_KEY}  base policy {found.base} {short(found.base_policy)}"
    yield _line("prompts", sources)
    if found.base_evaluation:
        yield _line("evaluated", _evaluation(found.base_evaluation))


def _link_lines(link: Link, before: Link | None) -> Iterator[str]:
    recipe = f", recipe {link.recipe}" if link.recipe else ""
    yield (
        f"{link.key}  policy {short(link.policy)}, from {link.previous} {short(link.previous_policy)}{recipe}"
    )
    again = f"; made again since: {', '.join(link.replaced)}" if link.replaced else ""
    yield _line(
        "rollouts", f"{link.rollouts}: {link.rows:,} rows, {short(link.rollouts_hash)}{again}"
    )
    yield _line("engine", _shown(link.engine))
    yield _line("rewards", ", ".join(map(_shown, link.rewards)))
    yield _line("advantages", _shown(link.estimator))
    yield _line(
        "update",
        f"{_shown(link.loss)}; {_setting(link, 'optimizer_steps')}, {_setting(link, 'learning_rate')}",
    )
    if link.reference_used:
        yield _line(
            "reference", f"{link.reference or 'of another chain'} {short(link.reference_policy)}"
        )
    files = f"; files {', '.join(link.files)}" if link.files else ""
    commits = ", ".join(_short_commit(commit) for commit in link.commits) or "unknown"
    yield _line(
        "code", f"commit {commits}; {len(link.code)} files {short(link.code_digest)}{files}"
    )
    if link.evaluation:
        yield _line("evaluated", _evaluation(link.evaluation))
    if before is not None:
        yield _line("settings", _changes(before, link))


def _line(name: str, text: str) -> str:
    return f"  {name:<11}{text}"


def _shown(part: Part) -> str:
    """A component with what was set of it, a few settings at most."""
    flat = {name: value for name, value in part.settings.items() if not isinstance(value, Mapping)}
    chosen = [f"{name} {value}" for name, value in list(flat.items())[:SHOWN_SETTINGS]]
    more = len(part.settings) - len(chosen)
    listed = [*chosen, *([f"{more} more"] if more else [])]
    return f"{part.name} ({', '.join(listed)})" if listed else part.name


def _setting(link: Link, name: str) -> str:
    return f"{name} {link.method.get(f'update_policy.{name}', 'off')}"


def _short_commit(commit: str) -> str:
    digits, _, rest = commit.partition(" ")
    return f"{short(digits)}{f' {rest}' if rest else ''}"


def _evaluation(scores: Mapping[str, Mapping[str, float]]) -> str:
    return "; ".join(
        f"{name} mean@{int(each.get('samples', 0))} {each['mean']:.3f} "
        + f"[{each['mean_low']:.3f}, {each['mean_high']:.3f}]"
        + (f", greedy {each['greedy']:.3f}" if "greedy" in each else "")
        for name, each in scores.items()
        if {"mean", "mean_low", "mean_high"} <= each.keys()
    )


def _changes(before: Link, link: Link) -> str:
    """Settings that are not as in the iteration it follows."""
    places = sorted(before.method.keys() | link.method.keys())
    changed = [
        f"{place} {before.method.get(place, 'off')} → {link.method.get(place, 'off')}"
        for place in places
        if before.method.get(place) != link.method.get(place)
    ]
    if link.code_digest != before.code_digest:
        files = [
            file
            for file in sorted(before.code.keys() | link.code.keys())
            if before.code.get(file) != link.code.get(file)
        ]
        changed.append(
            f"code of {', '.join(files[:SHOWN_SETTINGS])}{' …' if len(files) > SHOWN_SETTINGS else ''}"
        )
    if not changed:
        return f"as {before.key}"
    more = len(changed) - SHOWN_CHANGES
    return "; ".join([*changed[:SHOWN_CHANGES], *([f"and {more} more"] if more > 0 else [])])


def _show_uses(thing: str, as_json: bool, as_mermaid: bool) -> None:
    from pipeline.tracing.graph import mermaid_of_uses
    from pipeline.tracing.uses import uses_of

    found = uses_of(thing)
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=1))
    elif as_mermaid:
        click.echo(mermaid_of_uses(found), nl=False)
    else:
        click.echo("\n".join(_use_lines(found)))


def _use_lines(found: Uses) -> Iterator[str]:
    yield found.thing
    width = max((len(use.step) for use in found.uses), default=0)
    yield from (f"  {use.step:<{width}}  {use.how}" for use in found.uses)
    if not found.uses:
        yield "  used by no step"
    policies = ", ".join(found.policies) or "none"
    yield f"policies made with it, or from one that was: {policies}"
