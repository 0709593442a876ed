"""What a page about something is made of; a terminal and a browser draw the same parts, each in its way.

First the parts, then how values are written, then what pages of several kinds have in common: prompts, tables of
answers, where things come from. Texts in here may be anyone's: whoever draws a part makes them safe first
(`rollbook.core.text`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollbook.core.hashing import short as digits
from rollbook.core.yaml import flow
from rollbook.project.run.policies import PolicyLink
from rollbook.views.show.facts import Answer, Made, Piece, Prompt, Provenance, Token

LEVELS = (0.9, 0.5, 0.1, 0.01)
"""Probabilities below which a token of a heat strip is one degree warmer."""
LEGEND = "likelihood under the policy that sampled:"
CLIP_MARKS = {"low": "↓", "high": "↑"}
"""What stands behind a token that the lower or the upper bound held."""
NOTHING = "–"
CELL = 60
"""Characters of an answer in a table."""


@dataclass(frozen=True)
class KeyValues:
    """Names and values, one pair a line.

    Attributes:
        pairs: of them.
        told: whether the values are sentences of this program, in which backticks set off code; in a text of anyone's
            they are a part of it.
    """

    pairs: Sequence[tuple[str, str]]
    told: bool = False


@dataclass(frozen=True)
class Grid:
    """A table.

    Attributes:
        head: names of its columns.
        rows: cells.
        numbers: columns that are set to the right.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[str] = ()


@dataclass(frozen=True)
class Passage:
    """A text of several lines."""

    text: str


@dataclass(frozen=True)
class PromptStrip:
    """The tokens of a prompt, special ones set apart."""

    pieces: Sequence[Piece]


@dataclass(frozen=True)
class HeatStrip:
    """The tokens of a completion by how likely each was, with marks on those that were clipped or not trained on."""

    tokens: Sequence[Token]


@dataclass(frozen=True)
class Lines:
    """Lines as they are; `formula` for such as must keep their columns."""

    lines: Sequence[str]
    formula: bool = False


@dataclass(frozen=True)
class Remark:
    """A sentence, and whether it is good news; None: neither."""

    text: str
    good: bool | None


Part = KeyValues | Grid | Passage | PromptStrip | HeatStrip | Lines | Remark


@dataclass(frozen=True)
class Section:
    """Parts under a title."""

    title: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Page:
    """All about one thing.

    Attributes:
        title: what it is, such as `rollout`.
        name: its id.
        subtitle: one line.
        sections: in order.
    """

    title: str
    name: str
    subtitle: str
    sections: Sequence[Section] = field(default_factory=list)


def level_of(logprob: float) -> int:
    """How warm a token is: 0 for one that was nearly certain, up to the number of LEVELS."""
    probability = math.exp(min(logprob, 0.0))
    return sum(probability < level for level in LEVELS)


def shown(value: object, digits: int = 4) -> str:
    """A value on a line: numbers short, truth values as words, what is missing as a dash."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    return str(value)


def signed(value: float | None) -> str:
    """A number with its sign."""
    return NOTHING if value is None or math.isnan(value) else f"{value:+.4f}"


def share(value: float | None) -> str:
    """A share in percent."""
    return NOTHING if value is None or math.isnan(value) else f"{value:.1%}"


# --- what pages of several kinds have in common --------------------------------------------------


def where_from(evaluation_set: str, provenance: Provenance) -> str:
    """The evaluation or the training iteration that something is of, in words."""
    if evaluation_set:
        return f"evaluation of policy {provenance.iteration} on {evaluation_set}"
    recipe = f", recipe {provenance.recipe}" if provenance.recipe else ""
    sealed = f", sealed in {provenance.sealed}" if provenance.sealed else ""
    return f"training iteration {provenance.iteration}{recipe}{sealed}"


def prompt_parts(prompt: Prompt) -> list[Part]:
    """A prompt as the policy saw it, as far as that is stored, and what belongs to it."""
    parts: list[Part] = []
    if prompt.pieces:
        parts.append(PromptStrip(prompt.pieces))
    elif prompt.rendered:
        parts.append(Passage(prompt.rendered))
    else:
        parts.append(
            Passage("\n".join(f"{each['role']}: {each['content']}" for each in prompt.messages))
        )
    pairs = [
        ("prompt", prompt.prompt_id),
        ("reference answer", shown(prompt.reference_answer)),
        *((name, plain(value)) for name, value in prompt.columns.items() if value is not None),
    ]
    return [*parts, KeyValues(pairs)]


def answers_grid(answers: Sequence[Answer]) -> Part:
    """Answers side by side; columns that none of them has are left out."""
    if not answers:
        return Lines(["none"])
    names = list(dict.fromkeys(name for answer in answers for name in answer.rewards))
    parts = names if len(names) > 1 else []
    trained = any(answer.trained is not None for answer in answers)
    advantages = any(answer.advantage is not None for answer in answers)
    head = ["rollout", "answer", "tokens", "finish", *parts, "reward"]
    head += ["advantage"] if advantages else []
    head += ["update"] if trained else []
    rows = [
        [
            answer.rollout_id.rpartition("/")[2] + (" greedy" if answer.greedy else ""),
            short(answer.text),
            str(answer.tokens),
            answer.finish_reason,
            *(shown(answer.rewards.get(name)) for name in parts),
            "failed" if answer.error and answer.reward is None else shown(answer.reward),
            *([signed(answer.advantage)] if advantages else []),
            *([_fate(answer)] if trained else []),
        ]
        for answer in answers
    ]
    return Grid(head, rows, ["tokens", *parts, "reward", "advantage"])


def _fate(answer: Answer) -> str:
    return "trained" if answer.trained else answer.reason or NOTHING


def provenance_sections(found: Provenance) -> list[Section]:
    """Policies, steps, tables and settings."""
    pairs = [("policy that generated", link_text(found.policy_in))]
    if found.policy_out is not None:
        pairs.append(("policy that it led to", link_text(found.policy_out)))
    pairs.append(("engine", found.engine))
    pairs += made_pairs(found.made)
    pairs.append(("MLflow", found.mlflow.how))
    parts: list[Part] = [KeyValues(pairs)]
    if found.origins:
        rows = [
            [item.path, digits(item.content_hash), item.md5 or NOTHING] for item in found.origins
        ]
        parts.append(Grid(["table", "content", "DVC md5"], rows))
    parts += [Remark(line, False) for line in found.disagreements]
    if found.missing:
        parts.append(Lines([f"not on disk: {line}" for line in found.missing]))
    settings = [(stage, written(each)) for stage, each in found.settings.items() if each]
    return [
        Section("Where it comes from", parts),
        *([Section("Settings", [KeyValues(settings)])] if settings else []),
    ]


def made_pairs(made: Sequence[Made]) -> list[tuple[str, str]]:
    """One line per step; the commit is said once where it is the same for all."""
    commits = {(item.commit, item.dirty) for item in made}
    pairs = [("commit", _commit(made[0]))] if len(commits) == 1 else []
    for item in made:
        commit = "" if len(commits) == 1 else f", commit {_commit(item)}"
        pairs.append(
            (item.stage, f"{item.finished[:19].replace('T', ' ')} UTC, {item.environment}{commit}")
        )
    return pairs


def _commit(made: Made) -> str:
    if not made.commit:
        return "none: not run in a git repository"
    return (
        f"{digits(made.commit)} with changes, kept in run_info"
        if made.dirty
        else digits(made.commit)
    )


def link_text(policy: PolicyLink) -> str:
    """A policy on a line."""
    return f"{policy.key or 'unknown'}, digest {digits(policy.digest)}, {policy.place}"


def number(value: float | None) -> str:
    """A number with four places after the point."""
    return NOTHING if value is None or math.isnan(value) else f"{value:.4f}"


def short(text: str) -> str:
    """The beginning and the end of a text: its answer stands at the end."""
    if len(text) <= CELL:
        return text
    half = (CELL - 3) // 2
    return f"{text[:half]} … {text[-half:]}"


def written(settings: Mapping[str, Any]) -> str:
    """Settings on a line, those that are null left out."""
    return flow(_given(settings))


def _given(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _given(item) for name, item in value.items() if item is not None}
    return [_given(item) for item in value] if isinstance(value, list) else value


def plain(value: object) -> str:
    """A value of someone's own column on a line."""
    return shown(value) if not isinstance(value, (list, dict)) else flow(value)
