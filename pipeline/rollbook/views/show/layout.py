"""From facts to a page: what stands where, and in which words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollbook.core.hashing import short as digits
from rollbook.rl.evaluation import RIGHT_FROM
from rollbook.views.show.clipping import clipping_in_words
from rollbook.views.show.facts import (
    Advantage,
    AdvantageArithmetic,
    GroupFacts,
    Occurrence,
    Partner,
    PolicyFacts,
    PromptFacts,
    RolloutFacts,
    RolloutUpdate,
    Shown,
    Token,
)
from rollbook.views.show.sections import (
    CLIP_MARKS,
    NOTHING,
    Grid,
    HeatStrip,
    KeyValues,
    Lines,
    Page,
    Part,
    Passage,
    Remark,
    Section,
    answers_grid,
    link_text,
    made_pairs,
    number,
    plain,
    prompt_parts,
    provenance_sections,
    share,
    short,
    shown,
    where_from,
    written,
)

CLIP_SHARE = "clip_ratio/region_mean"
UPDATE_METRICS = (
    "loss",
    "grad_norm",
    "learning_rate",
    "entropy",
    "kl",
    CLIP_SHARE,
    "ratio/min",
    "ratio/max",
    "value_loss",
    "explained_variance",
    "rewards/accuracies",
    "rewards/margins",
    "optimizer_step",
)
"""Metrics of an update that are shown of a policy; all are in the JSON."""
ASKED_ONCE = "one row: no other iteration drew this prompt; those of an evaluation set are asked of every policy"
TOKENS_LISTED = 12
"""Tokens of a completion with their numbers; of more, those that were clipped, then the least likely."""


def page_of(facts: Shown) -> Page:
    """The page about something."""
    if isinstance(facts, RolloutFacts):
        return _rollout(facts)
    if isinstance(facts, GroupFacts):
        return _group(facts)
    if isinstance(facts, PromptFacts):
        return _prompt(facts)
    return _policy(facts)


# --- a rollout ------------------------------------------------------------------------------------


def _rollout(facts: RolloutFacts) -> Page:
    """From prompt to gradient, top to bottom."""
    sections = [
        Section("Prompt", prompt_parts(facts.prompt)),
        Section("Completion", list(_completion_parts(facts))),
        Section("Reward", list(_reward_parts(facts))),
        Section("Siblings", [answers_grid(facts.siblings)]),
    ]
    if facts.advantage is not None:
        sections.append(Section("Advantage", list(_advantage_parts(facts.advantage))))
    if facts.partners:
        sections.append(Section("KeyValues", [_partners_grid(facts.partners)]))
    if not facts.evaluation_set:
        sections.append(Section("Update", list(_update_parts(facts.update, facts))))
    sections += provenance_sections(facts.provenance)
    greedy = "greedy answer" if facts.greedy else f"answer {facts.sample_index}"
    return Page(
        "Rollout",
        facts.rollout_id,
        f"{greedy}, {where_from(facts.evaluation_set, facts.provenance)}",
        sections,
    )


def _completion_parts(facts: RolloutFacts) -> Iterator[Part]:
    tokens = facts.tokens
    if facts.decoded:
        yield Remark(facts.decoded, None)
    if tokens and tokens[0].text is None:
        yield Passage(facts.completion)
    if tokens:
        yield HeatStrip(tokens)
        yield Lines(list(_mark_lines(tokens)))
    total = math.fsum(token.sampling_logprob for token in tokens)
    pairs = [
        ("finish reason", facts.finish_reason),
        ("tokens", f"{len(tokens)}, {sum(token.trained for token in tokens)} of them to train on"),
        ("log-prob", f"{total:.4f} in all, {total / max(len(tokens), 1):.4f} a token"),
        ("seed", str(facts.seed)),
    ]
    yield KeyValues(pairs)
    if tokens:
        yield _token_grid(tokens)


def _mark_lines(tokens: Sequence[Token]) -> Iterator[str]:
    low = sum(token.clipped == "low" for token in tokens)
    high = sum(token.clipped == "high" for token in tokens)
    if low or high:
        yield f"clipped when last seen in training: {low} by the lower bound (↓), {high} by the upper (↑)"
    if masked := sum(not token.trained for token in tokens):
        yield f"{masked} not trained on (in ⟦ ⟧)"


def _token_grid(tokens: Sequence[Token]) -> Grid:
    """Numbers of all tokens, or of the clipped and the least likely ones."""
    listed = sorted(tokens, key=lambda token: (not token.clipped, token.sampling_logprob))
    listed = sorted(listed[:TOKENS_LISTED], key=lambda token: token.place)
    head = ["token", "text", "id", "p", "log-prob"]
    columns = {
        "old": "old_logprob",
        "reference": "ref_logprob",
        "in training": "policy_logprob",
        "ratio": "ratio",
        "advantage": "advantage",
        "value": "value",
        "return": "token_return",
    }
    given = {
        name: each
        for name, each in columns.items()
        if any(getattr(token, each) is not None for token in tokens)
    }
    clips = any(token.clipped for token in tokens)
    rows = [
        [
            str(token.place),
            NOTHING if token.text is None else f"'{token.text}'",  # a space is seen
            str(token.id),
            f"{math.exp(min(token.sampling_logprob, 0.0)):.3f}",
            f"{token.sampling_logprob:.4f}",
            *(number(getattr(token, each)) for each in given.values()),
            *([CLIP_MARKS.get(token.clipped or "", "")] if clips else []),
        ]
        for token in listed
    ]
    numbers = ["token", "id", "p", "log-prob", *given]
    return Grid([*head, *given, *(["clipped"] if clips else [])], rows, numbers)


def _reward_parts(facts: RolloutFacts) -> Iterator[Part]:
    if facts.error:
        yield Remark(f"a reward function failed: {facts.error}", False)
    if facts.rewards:
        weighed = any(reward.weight is not None for reward in facts.rewards)
        rows = [
            [
                reward.name,
                shown(reward.value, 6),
                *([shown(reward.weight)] if weighed else []),
                _logged(reward.logged),
            ]
            for reward in facts.rewards
        ]
        head = ["reward", "value", *(["weight"] if weighed else []), "logged"]
        yield Grid(head, rows, ["value", "weight"])
    pairs = [("total", shown(facts.reward, 6))]
    if facts.logged:
        pairs.append(("also logged", _logged(facts.logged)))
    if facts.step_rewards:
        steps = ", ".join(
            f"{shown(step['value'])} to token {step['end']}" for step in facts.step_rewards
        )
        pairs.append(("by step", steps))
    yield KeyValues(pairs)


def _logged(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {plain(value)}" for name, value in values.items())


def _advantage_parts(advantage: Advantage) -> Iterator[Part]:
    arithmetic = advantage.arithmetic
    if arithmetic is None:
        yield Lines(["a baseline: it is compared with, and never trained on"])
    else:
        name = arithmetic.estimator
        yield Lines([f"{name}: {arithmetic.words}" if arithmetic.words else name])
        if arithmetic.formula:
            yield Lines(arithmetic.formula, formula=True)
        if arithmetic.steps:
            yield Lines(arithmetic.steps)
        yield _agreement(arithmetic)
    yield KeyValues(
        [
            ("advantage", f"{advantage.value:+.6g}"),
            (
                "group",
                f"mean {shown(advantage.group_mean)}, deviation {shown(advantage.group_std)}",
            ),
            ("informative", shown(advantage.informative)),
            ("kept for the update", shown(advantage.kept)),
        ]
    )


def _partners_grid(partners: Sequence[Partner]) -> Grid:
    rows = [
        [
            "chosen over" if partner.chosen else "rejected for",
            partner.rollout_id.rpartition("/")[2],
            shown(partner.reward, 6),
            shown(partner.own_reward, 6),
        ]
        for partner in partners
    ]
    return Grid(
        ["it is", "rollout", "its reward", "own reward"], rows, ["its reward", "own reward"]
    )


def _agreement(arithmetic: AdvantageArithmetic) -> Remark:
    of = f"computed again from {arithmetic.from_rollouts} stored rollouts: {shown(arithmetic.computed, 6)}"
    if arithmetic.agrees is None:
        return Remark(f"not computed again: {arithmetic.problem}", None)
    if arithmetic.agrees:
        return Remark(f"{of}, as stored", True)
    return Remark(f"{of}; {arithmetic.problem}", False)


def _update_parts(update: RolloutUpdate | None, facts: RolloutFacts) -> Iterator[Part]:
    if update is None:
        yield Lines(["nothing is known of an update yet"])
        return
    if not update.trained:
        yield Remark(f"not trained on: {update.reason or 'no reason was stored'}", None)
    if update.loss:
        yield Lines([f"{update.loss}: {update.words}" if update.words else update.loss])
    if not update.trained:
        return
    pairs = [("share of the loss", share(update.loss_share))]
    if update.ratio_mean is not None:
        spread = f"{number(update.ratio_mean)} on average, {number(update.ratio_min)} to {number(update.ratio_max)}"
        marked = all(token.clipped is not None for token in facts.tokens)
        which = "" if marked or not update.clipped_fraction else "; which, is not stored"
        clipped = f"{share(update.clipped_fraction)} of its tokens{which}"
        pairs = [("ratio", spread), ("clipped", clipped), *pairs]
    if update.kl is not None:
        pairs.append(("KL a token", f"{shown(update.kl)} nats"))
    if update.rollout_weight is not None:
        pairs.append(("rollout correction", f"weight {shown(update.rollout_weight)} on average"))
    yield KeyValues(pairs)


# --- a group, a prompt, a policy ------------------------------------------------------------------


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
        Section("Answers", [answers_grid(facts.answers), KeyValues(pairs)]),
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
            Lines(
                [
                    f"right: share of the sampled answers whose {facts.right_column} is at least {RIGHT_FROM:g}"
                ]
            )
        )
    if facts.over_time and len(facts.occurrences) == 1:
        parts.append(Lines([ASKED_ONCE]))
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
    parts: list[Part] = [KeyValues(place)]
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
    if numbers:
        pairs.append(("numbers", ", ".join(numbers)))
    if CLIP_SHARE in facts.metrics and (words := clipping_in_words(facts.settings.get("loss", {}))):
        pairs.append((CLIP_SHARE, words))
    return [KeyValues(pairs)]


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
            f"{found.origin.path}, content {digits(found.origin.content_hash)}, md5 {found.origin.md5 or NOTHING}",
        ),
    ]
    parts: list[Part] = [KeyValues(pairs)]
    if not found.same:
        parts.append(Remark("the table on disk is not the one that the update read", False))
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
