"""A lineage in words: what an iteration read and made, and what it changed, a name and a text a line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rollbook.core.hashing import short
from rollbook.core.text import listed
from rollbook.project.ancestry import short_commit
from rollbook.views.lineage.links import Link, UsedComponent

SHOWN_CHANGES = 8
SHOWN_SETTINGS = 3
"""Settings shown behind a component."""


def link_words(link: Link, before: Link | None) -> Iterator[tuple[str, str]]:
    """One iteration.

    Args:
        link: of it.
        before: the iteration that it follows; None for the first.
    """
    again = f"; made again since: {', '.join(link.replaced)}" if link.replaced else ""
    yield (
        "rollouts",
        f"{link.rollouts}: {link.rows:,} rows, {short(link.rollouts_hash)}{again}",
    )
    yield "engine", part_words(link.engine)
    yield "rewards", ", ".join(map(part_words, link.rewards))
    yield "advantages", part_words(link.estimator)
    if link.critic is not None:
        yield "critic", part_words(link.critic)
    yield (
        "update",
        f"{part_words(link.loss)}; {_setting(link, 'optimizer_steps')}, {_setting(link, 'learning_rate')}",
    )
    if link.reference_used:
        yield (
            "reference",
            f"{link.reference or 'of another chain'} {short(link.reference_policy)}",
        )
    files = f"; files {', '.join(link.files)}" if link.files else ""
    commits = ", ".join(short_commit(commit) for commit in link.commits) or "unknown"
    yield "code", f"commit {commits}; {len(link.code)} files {short(link.code_digest)}{files}"
    if link.evaluation:
        yield "evaluated", evaluation_words(link.evaluation)
    if before is not None:
        yield "settings", _changes(before, link)


def part_words(part: UsedComponent) -> str:
    """A component with what was set of it, a few settings at most."""
    flat = {name: value for name, value in part.settings.items() if not isinstance(value, Mapping)}
    chosen = [f"{name} {value}" for name, value in list(flat.items())[:SHOWN_SETTINGS]]
    more = len(part.settings) - len(chosen)
    listed = [*chosen, *([f"{more} more"] if more else [])]
    return f"{part.name} ({', '.join(listed)})" if listed else part.name


def _setting(link: Link, name: str) -> str:
    return f"{name} {link.method.get(f'update_policy.{name}', 'off')}"


def evaluation_words(scores: Mapping[str, Mapping[str, float]]) -> str:
    """Means of every set with their 95 % intervals."""
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
    return listed(changed, SHOWN_CHANGES, "; ")
