"""What pages of several kinds have in common: prompts, tables of answers, and where things come from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.showing.facts import Answer, Made, PolicyLink, Prompt, Provenance
from pipeline.showing.sections import (
    NOTHING,
    Grid,
    Lines,
    Pairs,
    Part,
    Passage,
    PromptStrip,
    Section,
    Verdict,
    shown,
    signed,
)
from pipeline.yaml_text import flow

CELL = 60
"""Characters of an answer in a table."""
DIGEST = 12


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
    return [*parts, Pairs(pairs)]


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
    parts: list[Part] = [Pairs(pairs)]
    if found.origins:
        rows = [
            [item.path, item.content_hash[:DIGEST], item.md5 or NOTHING] for item in found.origins
        ]
        parts.append(Grid(["table", "content", "DVC md5"], rows))
    parts += [Verdict(line, False) for line in found.disagreements]
    if found.missing:
        parts.append(Lines([f"not on disk: {line}" for line in found.missing]))
    settings = [(stage, written(each)) for stage, each in found.settings.items() if each]
    return [
        Section("Where it comes from", parts),
        *([Section("Settings", [Pairs(settings)])] if settings else []),
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
        f"{made.commit[:DIGEST]} with changes, kept in run_info"
        if made.dirty
        else made.commit[:DIGEST]
    )


def link_text(policy: PolicyLink) -> str:
    """A policy on a line."""
    return f"{policy.key or 'unknown'}, digest {policy.digest[:DIGEST]}, {policy.place}"


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
