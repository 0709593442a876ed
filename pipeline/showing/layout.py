"""From facts to a page: what stands where, and in which words."""

from __future__ import annotations

from pipeline.showing.facts import (
    Facts,
    GroupFacts,
    Occurrence,
    PolicyFacts,
    PromptFacts,
    RolloutFacts,
)
from pipeline.showing.parts import (
    DIGEST,
    answers_grid,
    link_text,
    made_pairs,
    prompt_parts,
    provenance_sections,
    short,
    where_from,
    written,
)
from pipeline.showing.rollout_page import rollout_page
from pipeline.showing.sections import (
    NOTHING,
    Grid,
    Lines,
    Page,
    Pairs,
    Part,
    Section,
    Verdict,
    share,
    shown,
)

UPDATE_METRICS = (
    "loss",
    "grad_norm",
    "learning_rate",
    "entropy",
    "kl",
    "clip_ratio/region_mean",
    "ratio/min",
    "ratio/max",
    "optimizer_step",
)
"""Metrics of an update that are shown of a policy; all are in the JSON."""


def page_of(facts: Facts) -> Page:
    """The page about something."""
    if isinstance(facts, RolloutFacts):
        return rollout_page(facts)
    if isinstance(facts, GroupFacts):
        return _group(facts)
    if isinstance(facts, PromptFacts):
        return _prompt(facts)
    return _policy(facts)


def _group(facts: GroupFacts) -> Page:
    pairs = [("mean reward", shown(facts.mean)), ("deviation", shown(facts.std))]
    if facts.informative is not None:
        pairs += [
            ("informative", shown(facts.informative)),
            ("kept for the update", f"{facts.kept} of {len(facts.answers)}"),
            ("estimator", f"{facts.estimator}: {facts.words}" if facts.words else facts.estimator),
        ]
    sections = [
        Section("Prompt", prompt_parts(facts.prompt)),
        Section("Answers", [answers_grid(facts.answers), Pairs(pairs)]),
        *provenance_sections(facts.provenance),
    ]
    return Page(
        "Group", facts.group_id, where_from(facts.evaluation_set, facts.provenance), sections
    )


def _prompt(facts: PromptFacts) -> Page:
    sections = [Section("Prompt", prompt_parts(facts.prompt))]
    title = "Over time" if facts.over_time else "Asked in"
    parts: list[Part] = (
        [_occurrences(facts)] if facts.occurrences else [Lines(["never asked so far"])]
    )
    if facts.occurrences and facts.right_column:
        parts.append(
            Lines([f"right: share of the sampled answers whose {facts.right_column} is 1"])
        )
    if facts.missing:
        parts.append(Lines(facts.missing))
    sections.append(Section(title, parts))
    place = f"in the data: {facts.data}" if facts.data else "not in the data on disk"
    return Page("Prompt", facts.prompt.prompt_id, place, sections)


def _occurrences(facts: PromptFacts) -> Grid:
    head = ["iteration", "set", "rollouts", "mean reward", "right", "informative"]
    head += ["answer", "its reward"] if facts.over_time else ["group"]
    rows = [
        [
            item.iteration,
            item.evaluation_set or "training",
            str(item.rollouts),
            shown(item.mean_reward),
            share(item.right),
            shown(item.informative),
            *(_one_answer(item) if facts.over_time else [item.group_id]),
        ]
        for item in facts.occurrences
    ]
    return Grid(head, rows, ["rollouts", "mean reward", "right", "its reward"])


def _one_answer(item: Occurrence) -> list[str]:
    if item.answer is None:
        return [NOTHING, NOTHING]
    greedy = "greedy: " if item.answer.greedy else ""
    return [f"{greedy}{short(item.answer.text)}", shown(item.answer.reward)]


def _policy(facts: PolicyFacts) -> Page:
    sections = [Section("How it came to be", _policy_origin(facts))]
    if facts.trained_on is not None:
        sections.append(Section("Trained on", _trained_on(facts)))
    if facts.evaluations:
        sections.append(Section("Evaluation", [_evaluations(facts)]))
    place: list[tuple[str, str]] = [
        ("digest", facts.policy.digest),
        ("folder", f"{facts.path}: {facts.policy.place}"),
        ("DVC md5", facts.md5 or NOTHING),
        *made_pairs([facts.made] if facts.made else []),
        ("MLflow", facts.mlflow.how),
    ]
    parts: list[Part] = [Pairs(place)]
    if facts.missing:
        parts.append(Lines([f"not on disk: {line}" for line in facts.missing]))
    sections.append(Section("Where it is", parts))
    recipe = f"recipe {facts.recipe}" if facts.recipe else "recipe not in params.yaml"
    sealed = f", sealed in {facts.sealed}" if facts.sealed else ""
    subtitle = "the base policy" if facts.previous is None else f"{recipe}{sealed}"
    return Page("Policy", facts.policy.key, subtitle, sections)


def _policy_origin(facts: PolicyFacts) -> list[Part]:
    pairs = [("base", written(facts.base))]
    if facts.previous is not None:
        pairs.append(("trained from", link_text(facts.previous)))
        back = facts.steps_back
        pairs.append(
            ("updates from the base", "the chain is broken" if back is None else str(back))
        )
    if facts.reference is not None:
        pairs.append(("reference of the KL", link_text(facts.reference)))
    if facts.previous is not None:
        loss = facts.settings.get("loss", {})
        pairs.append(("loss", written(loss)))
        rest = {name: value for name, value in facts.settings.items() if name != "loss"}
        pairs.append(("update", written(rest)))
    numbers = [
        f"{name} {shown(facts.metrics[name])}" for name in UPDATE_METRICS if name in facts.metrics
    ]
    return [Pairs([*pairs, *([("numbers", ", ".join(numbers))] if numbers else [])])]


def _trained_on(facts: PolicyFacts) -> list[Part]:
    found = facts.trained_on
    assert found is not None
    pairs = [
        (
            "rollouts",
            f"{found.rollouts} in {found.groups} groups, {shown(found.informative)} of them informative",
        ),
        ("kept and trained on", f"{shown(found.kept)} and {shown(found.trained)}"),
        ("mean reward", shown(found.mean_reward)),
        (
            "table",
            f"{found.origin.path}, content {found.origin.content_hash[:DIGEST]}, md5 {found.origin.md5 or NOTHING}",
        ),
    ]
    parts: list[Part] = [Pairs(pairs)]
    if not found.same:
        parts.append(Verdict("the table on disk is not the one that the update read", False))
    return parts


def _evaluations(facts: PolicyFacts) -> Grid:
    rows = [
        [
            item.set,
            str(item.samples),
            shown(item.mean),
            f"{shown(item.mean_low, 3)} to {shown(item.mean_high, 3)}",
            shown(item.greedy),
            shown(item.passed),
        ]
        for item in facts.evaluations
    ]
    head = ["set", "samples", "mean", "95 %", "greedy", "pass@samples"]
    return Grid(head, rows, head[1:])
