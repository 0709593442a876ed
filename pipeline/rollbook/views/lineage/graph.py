"""A lineage, or what used a thing, as a Mermaid graph: an arrow from what was read to what was made.

Labels are quoted, and what could end them, or be read as HTML or as Markdown, is written as an entity
(mermaid.js.org/syntax/flowchart.html, "Entity codes to escape characters").
"""

from __future__ import annotations

from collections.abc import Iterator

from rollbook.core.hashing import short
from rollbook.core.ids import BASE_KEY
from rollbook.views.lineage.links import Lineage, Link, UsedComponent
from rollbook.views.lineage.uses import Uses

PLAIN = frozenset(" .,:+-/=()@")
"""Characters beside letters and digits that mean nothing in a label."""
BREAK = "<br/>"


def mermaid(lineage: Lineage) -> str:
    """A box per artifact and iteration."""
    lines = [
        "flowchart LR",
        _box("data", "training prompts", ", ".join(part.name for part in lineage.sources)),
        _box(_policy(BASE_KEY), f"base policy {lineage.base}", short(lineage.base_policy)),
        "  data --> " + _policy(BASE_KEY),
    ]
    for link in lineage.links:
        lines += [f"  subgraph {link.key}", *_boxes(link), "  end", *_arrows(link)]
    return "\n".join(lines) + "\n"


def mermaid_of_uses(uses: Uses) -> str:
    """The thing, a box per step that used it, and one per policy that came of it."""
    lines = ["flowchart LR", _box("thing", uses.thing)]
    names: dict[str, list[str]] = {key: [_policy(key)] for key in uses.policies}
    for number, use in enumerate(uses.uses):
        names.setdefault(use.step, []).append(f"step_{number}")
        lines += [_box(f"step_{number}", use.step, use.how), f"  thing --> step_{number}"]
    lines += [_box(_policy(key), f"policy {key}") for key in uses.policies]
    lines += [
        f"  {name} --> {_policy(made)}" for source, made in uses.arrows for name in names[source]
    ]
    return "\n".join(lines) + "\n"


def _boxes(link: Link) -> Iterator[str]:
    key = link.key
    rows = f"{link.rows:,} rows"
    yield _box(f"prompts_{key}", f"prompts {key}", short(link.prompts_hash))
    yield _box(
        f"rollouts_{key}", f"rollouts {key}", rows, short(link.rollouts_hash), link.engine.name
    )
    yield _box(f"scores_{key}", f"scores {key}", *(_weighted(part) for part in link.rewards))
    if link.reference_used:
        yield _box(f"logprobs_{key}", f"logprobs {key}")
    yield _box(f"advantages_{key}", f"advantages {key}", link.estimator.name)
    means = [f"{name} {scores['mean']:.3f}" for name, scores in link.evaluation.items()]
    yield _box(
        _policy(key), f"policy {key}", short(link.policy), link.recipe, link.loss.name, *means
    )


def _arrows(link: Link) -> Iterator[str]:
    key, previous = link.key, _policy(link.previous)
    yield f"  data --> prompts_{key}"
    yield f"  prompts_{key} --> rollouts_{key}"
    yield f"  {previous} -->|samples| rollouts_{key}"
    yield f"  rollouts_{key} --> scores_{key}"
    yield f"  scores_{key} --> advantages_{key}"
    if link.reference_used:
        yield f"  rollouts_{key} --> logprobs_{key}"
        if link.reference:
            yield f"  {_policy(link.reference)} -->|reference| logprobs_{key}"
        yield f"  logprobs_{key} --> {_policy(key)}"
    yield f"  advantages_{key} --> {_policy(key)}"
    yield f"  {previous} -->|update| {_policy(key)}"


def _policy(key: str) -> str:
    return f"policy_{key}"


def _weighted(part: UsedComponent) -> str:
    return f"{part.name} {part.settings.get('weight', 1)}"


def _box(name: str, *lines: str) -> str:
    return f'  {name}["{BREAK.join(map(escaped, filter(None, lines)))}"]'


def escaped(text: str) -> str:
    """Text that a quoted label shows as it is."""
    return "".join(
        character if character.isalnum() or character in PLAIN else _entity(character)
        for character in text
    )


def _entity(character: str) -> str:
    """By number; an underscore, which Markdown would take for emphasis, too. Control characters are left out."""
    return f"#{ord(character)};" if character.isprintable() else " "
