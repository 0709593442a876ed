"""A recipe in words: what is asked, rewarded, compared and optimised, one line each, for people who look at a run.

It is read from plain settings, as params.yaml resolves them and as run_info recorded them, so that a step of older code
can be told too: what it did not know yet is left out, and what it should have known is called unknown. Two recipes are
compared as settings: what differs, with what their docstrings say of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rollbook.components.losses.base import Loss
from rollbook.components.rewards.base import Reward
from rollbook.core.component import Component, Model
from rollbook.core.field_docs import headline_of, meaning_of
from rollbook.core.registry import build
from rollbook.core.yaml import flow
from rollbook.settings.recipe import Recipe

Settings = Mapping[str, Any]
Item = TypeVar("Item")
Line = tuple[str, str]
"""What it is about, and the words."""
CUTS = {"top_p": 1.0, "top_k": 0, "min_p": 0.0}
"""What cuts the distribution that tokens are drawn from: the value that cuts nothing."""
RATIOS = {"sampling": "the engine's log-probs", "measured": "measured log-probs"}


SIZES: dict[str, tuple[str, ...]] = {
    "prepare_prompts": ("prompts_per_iteration", "max_prompt_tokens"),
    "generate_rollouts": ("engine", "group_size", "max_completion_tokens"),
    "update_policy": (
        "optimizer_steps",
        "learning_rate",
        "warmup_steps",
        "micro_batch_tokens",
        "precision",
        "gradient_checkpointing",
    ),
}
"""What depends on the model, the machine and the length of the run, and not on the objective."""
UNSET = "–"
"""In place of a setting that a recipe does not have."""


def stretches(chain: Iterable[Item], recipe_of: Callable[[Item], str]) -> list[list[Item]]:
    """A chain in pieces: neighbours under one recipe."""
    return [list(piece) for _, piece in itertools.groupby(chain, key=recipe_of)]


def recipe_in_words(
    settings: Settings,
    sources: Sequence[str] = (),
    references: Sequence[str] = (),
    explained: bool = False,
) -> list[Line]:
    """The recipe, as far as it decides what an iteration learns.

    Args:
        settings: by section, as in `recipes.<name>` of params.yaml, defaults filled in.
        sources: labels of the data that prompts come from, where they are to be named.
        references: iterations whose policies are frozen for the KL term, where they are to be named.
        explained: whether components are told in the words of their files too; they must be valid then.
    """
    compute, update = _section(settings, "compute_advantages"), _section(settings, "update_policy")
    estimator = _component("advantages", compute.get("estimator", {}), explained)
    kept = "; groups without a signal are left out" if compute.get("drop_zero_signal") else ""
    return [
        ("prompts", _prompts(_section(settings, "prepare_prompts"), sources)),
        ("rollouts", _rollouts(_section(settings, "generate_rollouts"))),
        *_rewards(_section(settings, "score_rollouts"), explained),
        ("advantages", f"{estimator}{kept}"),
        *_critic(update, explained),
        ("loss", _component("losses", update.get("loss", {}), explained)),
        ("KL", _kl(compute, update.get("loss", {}), references)),
        ("update", _update(update)),
    ]


def _section(settings: Settings, name: str) -> Settings:
    found: Settings = settings.get(name, {})
    return found


def _prompts(prepare: Settings, sources: Sequence[str]) -> str:
    factor, preferred = prepare.get("oversample", 1), prepare.get("prefer", "any")
    return "".join(
        [
            f"{_said(prepare, 'prompts_per_iteration', ',')} an iteration",
            f" from {', '.join(sources)}" if sources else "",
            f", {factor:g} times as many drawn" if factor > 1 else "",
            f", {preferred} ones preferred" if preferred != "any" else "",
        ]
    )


def _rollouts(generate: Settings) -> str:
    cuts = [
        f", {name} {generate[name]:g}"
        for name, off in CUTS.items()
        if generate.get(name, off) != off
    ]
    greedy = " and a greedy one" if generate.get("greedy") else ""
    return (
        f"{_said(generate, 'group_size')} answers{greedy} to each prompt, temperature "
        f"{_said(generate, 'temperature', 'g')}{''.join(cuts)}, at most "
        f"{_said(generate, 'max_completion_tokens', ',')} tokens, by {_name(generate.get('engine', {}))}"
    )


def _rewards(score: Settings, explained: bool) -> Iterator[Line]:
    rewards = score.get("rewards", [])
    for reward in rewards:
        shown = len(rewards) > 1 or reward.get("weight") != 1
        weight = f", weight {_said(reward, 'weight', 'g')}" if shown else ""
        yield f"reward{weight}", _component("rewards", reward, explained)


def _critic(update: Settings, explained: bool) -> Iterator[Line]:
    if critic := update.get("critic"):
        yield "critic", _component("critics", critic, explained)


def _kl(compute: Settings, loss: Settings, references: Sequence[str]) -> str:
    """To which policies, where it acts, and how strongly; a coefficient that follows a target is told in full."""
    named = f"to {', '.join(dict.fromkeys(references))}, " if references else ""
    for section, place in ((compute, "taken off the rewards"), (loss, "in the loss")):
        if coefficient := section.get("kl_coef"):
            if isinstance(coefficient, Mapping):
                coefficient = ", ".join(f"{key} {value:g}" for key, value in coefficient.items())
            return f"{named}{place}: coefficient {coefficient}, {_said(section, 'kl_estimator')}"
    known = _known(loss)
    if known is not None and known.needs_reference:
        return f"no term of its own: the loss compares with {', '.join(dict.fromkeys(references)) or 'the reference'}"
    return "none"


def _update(update: Settings) -> str:
    steps, epochs = update.get("optimizer_steps"), update.get("epochs", 1)
    old, known = _said(update, "old_logprobs"), _known(update.get("loss", {}))
    ratios = known is None or known.uses_ratio
    return "".join(
        [
            f"{_said(update, 'optimizer_steps')} optimizer step{'' if steps == 1 else 's'} an iteration",
            f" over {epochs} epochs" if epochs > 1 else "",
            f", learning rate {_said(update, 'learning_rate', 'g')}",
            ", LoRA" if update.get("lora") else "",
            f", ratios against {RATIOS.get(old, old)}" if ratios else "",
        ]
    )


def _known(loss: Settings) -> Loss | None:
    """The loss as this code has it; None for one that it does not know, or no longer with these settings."""
    try:
        found = build("losses", loss)
    except ValueError:  # pydantic's errors are of this kind
        return None
    assert isinstance(found, Loss)
    return found


def _component(kind: str, spec: Settings, explained: bool) -> str:
    """Its name, and what it does in the words of its file."""
    words = headline_of(type(build(kind, spec))) if explained else ""
    return f"{_name(spec)}: {words}" if words else _name(spec)


def _name(spec: Settings) -> str:
    """One of the user's own is called by its path."""
    return str(spec.get("path") or _said(spec, "name"))


def _said(section: Settings, name: str, form: str = "") -> str:
    value = section.get(name)
    return "unknown" if value is None else format(value, form)


@dataclass(frozen=True)
class SettingValue:
    """A value of a recipe and who can explain it.

    Attributes:
        value: as one would write it.
        owner: settings object that has the field.
        field: its name there; empty for a component as a whole.
    """

    value: str
    owner: type[Model]
    field: str

    @property
    def meaning(self) -> str:
        """What the docstrings say of it."""
        if not self.field and issubclass(self.owner, Component):
            return headline_of(self.owner)
        return meaning_of(self.owner, self.field)


@dataclass(frozen=True)
class SettingDifference:
    """A setting that differs.

    Attributes:
        place: dotted, such as `update_policy.loss.clip_high`.
        values: of the first and the second recipe; `–` where a recipe has no such setting.
        meaning: one line; two components are explained each.
        is_size: whether it is about scale and memory, not about the objective.
    """

    place: str
    values: tuple[str, str]
    meaning: str
    is_size: bool


def differences(first: Model, second: Model, section: str = "") -> list[SettingDifference]:
    """All settings that differ between two recipes, or two other groups of settings, in their order.

    Args:
        first, second: the two.
        section: of params.yaml that they are; names their places.
    """
    prefix = f"{section}." if section else ""
    one, two = dict(_values(first, prefix)), dict(_values(second, prefix))
    return [
        _difference(place, one.get(place), two.get(place))
        for place in sorted({*one, *two}, key=_order(one, two))
        if _shown(one.get(place)) != _shown(two.get(place))
    ]


def _order(one: Mapping[str, Any], two: Mapping[str, Any]) -> Any:
    """Places as they stand in a recipe; what only the second has comes behind what it follows there."""
    ranks = {place: (rank, 0) for rank, place in enumerate(one)}
    last, count = (-1, 0), 0
    for place in two:
        count = 0 if place in ranks else count + 1
        last = ranks.setdefault(place, (last[0], last[1] + count))
    return ranks.__getitem__


def _difference(
    place: str, first: SettingValue | None, second: SettingValue | None
) -> SettingDifference:
    meanings = dict.fromkeys(item.meaning for item in (first, second) if item is not None)
    section, _, name = place.partition(".")
    return SettingDifference(
        place,
        (_shown(first), _shown(second)),
        " | ".join(meaning for meaning in meanings if meaning),
        name.partition(".")[0] in SIZES.get(section, ()),
    )


def _shown(setting: SettingValue | None) -> str:
    return UNSET if setting is None else setting.value


def _values(model: Model, prefix: str) -> Iterator[tuple[str, SettingValue]]:
    """Place and value of every field; a component stands under its place, its fields below it."""
    cls = type(model)
    for field in cls.model_fields:
        value, place = getattr(model, field), f"{prefix}{field}"
        if isinstance(model, Component) and field in ("name", "path"):
            continue
        if isinstance(value, Component):
            yield place, SettingValue(value.name, type(value), "")
        if isinstance(value, Component) or isinstance(model, Recipe):
            yield from _values(value, f"{place}.")
        elif isinstance(value, Model):
            yield place, SettingValue(flow(value.model_dump(exclude_none=True)), cls, field)
        elif isinstance(value, list) and value and isinstance(value[0], Reward):
            for reward in value:
                label = f"{place}.{reward.title}"
                yield label, SettingValue(reward.name, type(reward), "")
                yield from _values(reward, f"{label}.")
        else:
            yield place, SettingValue(value if isinstance(value, str) else flow(value), cls, field)
