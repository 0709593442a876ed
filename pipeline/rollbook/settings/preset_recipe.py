"""A preset as a recipe of params.yaml: the method is the preset's, the task is that of a recipe that is there already.

The task is what to reward and how prompts are written. On request the sizes come from that recipe too, so that a
paper's objective runs at the scale at hand; what the preset counts in tokens of its own limit is scaled along.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollbook.components.prompt_format import PromptFormat
from rollbook.core.yaml import composed, flow, node_at, with_lines, with_value
from rollbook.settings.presets import Preset
from rollbook.settings.recipe import Recipe
from rollbook.settings.recipe_words import SIZES

LENGTHS = ("max_completion_tokens", "cache_tokens")
"""Fields of rewards that are counted in tokens of the completion's limit."""


@dataclass(frozen=True)
class Task:
    """The recipe that a preset takes its task from.

    Attributes:
        name: in params.yaml.
        raw: as written there, `extends` resolved.
        recipe: validated, defaults filled in.
    """

    name: str
    raw: Mapping[str, Any]
    recipe: Recipe


def preset_recipe(preset: Preset, task: Task, sizes: bool) -> str:
    """The sections of a recipe, not indented: those of the preset, with the task's rewards and prompt format.

    Args:
        preset: what is published.
        task: where rewards and prompt format come from.
        sizes: whether SIZES are those of the task too.
    """
    text = _with_sizes(preset, task) if sizes else preset.text
    return _with_prompt_format(_with_rewards(text, preset, task), task)


def _with_sizes(preset: Preset, task: Task) -> str:
    text = preset.text
    for section, names in SIZES.items():
        for name in names:
            value, published = _size(task, section, name), preset.settings[section][name]
            comment = f"as in {task.name}"
            if value != published:
                comment += f"; the preset: {flow(published)}"
            text = with_value(text, (section, name), flow(value), comment)
    limit = preset.settings["generate_rollouts"]["max_completion_tokens"]
    share = task.recipe.generate_rollouts.max_completion_tokens / limit
    for place, reward in enumerate(_own_rewards(preset)):
        for name in LENGTHS:
            if tokens := reward.get(name):
                scaled = flow(max(1, round(tokens * share)))
                comment = f"{tokens} of {limit} tokens, at the limit of {task.name}"
                text = with_value(text, ("score_rollouts", "rewards", place, name), scaled, comment)
    return _with_rate_of_critic(text, preset, task)


def _with_rate_of_critic(text: str, preset: Preset, task: Task) -> str:
    """The critic as many times faster than the policy as in the preset."""
    update = preset.settings["update_policy"]
    rate = (update.get("critic") or {}).get("learning_rate")
    if rate is None:
        return text
    times = rate / update["learning_rate"]
    scaled = flow(float(f"{task.recipe.update_policy.learning_rate * times:.6g}"))
    comment = f"{times:g} times that of the policy, as in the preset: {flow(rate)}"
    return with_value(text, ("update_policy", "critic", "learning_rate"), scaled, comment)


def _size(task: Task, section: str, name: str) -> Any:
    """As written, if it is: a component's settings are then the user's words."""
    written = task.raw.get(section) or {}
    if name in written or name != "engine":
        return written.get(name, getattr(getattr(task.recipe, section), name))
    return {"name": task.recipe.generate_rollouts.engine.name}


def _with_rewards(text: str, preset: Preset, task: Task) -> str:
    own = {reward.get("label") or reward["name"] for reward in _own_rewards(preset)}
    section = task.raw["score_rollouts"]
    kept = [reward for reward in section["rewards"] if not own & set(_labels(reward))]
    lines = [f"    - {flow(reward)} # as in {task.name}" for reward in kept]
    others = [
        f"  {name}: {flow(value)} # as in {task.name}"
        for name, value in section.items()
        if name != "rewards"
    ]
    root = composed(text)
    if own:
        first = node_at(root, ("score_rollouts", "rewards", 0)).start_mark.line
        text = with_lines(text, first, lines)
        return with_lines(text, first - 1, others)
    before = next(key.start_mark.line for key, _ in root.value if key.value == "compute_advantages")
    return with_lines(text, before, ["score_rollouts:", *others, "  rewards:", *lines])


def _with_prompt_format(text: str, task: Task) -> str:
    written = task.raw.get("prepare_prompts") or {}
    lines = [
        f"  {name}: {flow(written[name])} # as in {task.name}"
        for name in PromptFormat.model_fields
        if name in written
    ]
    start = node_at(composed(text), ("prepare_prompts",)).start_mark.line
    return with_lines(text, start, lines)


def _own_rewards(preset: Preset) -> Sequence[Mapping[str, Any]]:
    rewards: Sequence[Mapping[str, Any]] = preset.settings.get("score_rollouts", {}).get(
        "rewards", []
    )
    return rewards


def _labels(reward: Any) -> Iterator[str]:
    if isinstance(reward, str):
        yield reward
    else:
        yield from (str(reward[key]) for key in ("label", "name") if reward.get(key))
