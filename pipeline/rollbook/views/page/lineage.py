"""Lineage: all policies of the project as a drawing, and what made each policy of the chain in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from rollbook.core.errors import ArtifactError
from rollbook.core.hashing import short
from rollbook.core.ids import BASE_KEY
from rollbook.core.text import visible
from rollbook.project.ancestry import ancestry_of
from rollbook.views.lineage.links import Link, lineage_of
from rollbook.views.lineage.words import link_words
from rollbook.views.page.shown import ShownChain
from rollbook.views.show.page import marked, part_html
from rollbook.views.show.sections import KeyValues, Lines

COLUMN, LANE = 92, 64
"""Distance of neighbouring iterations and of branches, px."""
MARGIN = 44
RADIUS = 9


@dataclass(frozen=True)
class Node:
    """A policy in the drawing.

    Attributes:
        key: of its iteration.
        column: its step.
        lane: of its branch, 0 for the chain that is shown.
        own: whether it is of the chain that is shown.
        done: whether it is finished.
    """

    key: str
    column: int
    lane: int
    own: bool
    done: bool

    @property
    def x(self) -> int:
        return MARGIN + COLUMN * self.column

    @property
    def y(self) -> int:
        return MARGIN + LANE * self.lane


def nodes(shown: ShownChain) -> dict[str, Node]:
    """Every policy of params.yaml, sealed ones too: a lane for each branch."""
    own = {BASE_KEY, *shown.keys}
    found = {BASE_KEY: Node(BASE_KEY, 0, 0, True, True)}
    every = shown.every
    lanes = 0
    continued: set[str] = set()
    for key in sorted(
        every, key=lambda each: each not in own
    ):  # stable: each stands behind what it follows
        before = found[every[key].previous]
        if key in own:
            lane = 0
        elif before.key in continued or before.own:
            lanes += 1
            lane = lanes
        else:
            lane = before.lane
        continued.add(before.key)
        done = every[key].info("update_policy") is not None
        found[key] = Node(key, before.column + 1, lane, key in own, done)
    return found


def drawing(shown: ShownChain) -> str:
    """The policies as SVG: solid lines for training, dashed ones for a reference that is not the base."""
    found, every = nodes(shown), shown.every
    width = max(node.x for node in found.values()) + MARGIN
    height = max(node.y for node in found.values()) + MARGIN
    scores = {
        row["iteration"]: row["mean"]
        for row in reversed(shown.every_row)
        if row["mean"] is not None
    }
    edges = []
    for key, item in every.items():
        edges.append(_edge(found[item.previous], found[key], "edge"))
        if item.reference not in (BASE_KEY, item.previous) and item.recipe.needs_reference:
            edges.append(_edge(found[item.reference], found[key], "edge reference"))
    marks = [_node(node, scores.get(node.key), shown.recipe(node.key)) for node in found.values()]
    told = f"{len(found) - 1} iterations; the chain {BASE_KEY} to {shown.key} has {len(shown.keys)}"
    return (
        f'<div class="wide" tabindex="0" role="group" aria-label="Drawing of all policies">'
        f'<svg class="tree" role="img" aria-label="{escape(visible(told))}" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">{"".join(edges)}{"".join(marks)}</svg></div>'
    )


def _edge(start: Node, end: Node, kind: str) -> str:
    if start.y == end.y and kind == "edge":
        path = f"M{start.x} {start.y}H{end.x}"
    else:
        middle = (start.x + end.x) // 2
        lift = RADIUS * 3 if start.y == end.y else 0
        path = f"M{start.x} {start.y}C{middle} {start.y - lift} {middle} {end.y - lift} {end.x} {end.y}"
    own = " own" if end.own and start.own else ""
    return f'<path class="{kind}{own}" d="{path}"/>'


def _node(node: Node, score: float | None, recipe: str) -> str:
    kind = f"node{' own' if node.own else ''}{'' if node.done or node.key == BASE_KEY else ' open'}"
    below = recipe if score is None else f"{score:.3f}"
    title = f"{node.key}, {recipe}{'' if score is None else f', evaluation {score:.3f}'}"
    return (
        f'<g class="{kind}"><title>{escape(visible(title))}</title><circle cx="{node.x}" cy="{node.y}" r="{RADIUS}"/>'
        f'<text x="{node.x}" y="{node.y - 16}">{escape(visible(node.key))}</text>'
        f'<text class="small" x="{node.x}" y="{node.y + 25}">{escape(visible(below))}</text></g>'
    )


def policies_html(shown: ShownChain) -> str:
    """Each policy of the chain: what it was made from, newest first; open one to read it."""
    if not shown.finished:
        return ""
    digest = shown.run.policy_digest(shown.finished[-1])
    recipes: Mapping[str, str] = {key: shown.recipe(key) for key in shown.keys}
    try:
        found = lineage_of(shown.run, ancestry_of(shown.run, digest), recipes)
    except ArtifactError as error:
        return part_html(Lines([f"What made the policies is not on disk: {error.line}"]))
    return "".join(_policies(found.links))


def _policies(links: Sequence[Link]) -> Iterator[str]:
    befores = [None, *links[:-1]]
    for link, before in reversed(list(zip(links, befores, strict=True))):
        recipe = f" · {marked(link.recipe)}" if link.recipe else ""
        yield (
            f"<details><summary><b>{marked(link.key)}</b> from {marked(link.previous)}{recipe} · "
            f"{link.rows:,} rollouts · <code>{marked(short(link.policy))}</code></summary>"
            f"{part_html(KeyValues(list(link_words(link, before))))}</details>"
        )
