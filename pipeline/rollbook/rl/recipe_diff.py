"""How two recipes differ: settings with what they mean, and numbers that the recipes' own code computes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rollbook.components.advantages.base import AdvantageInputs
from rollbook.components.rewards.base import Reward
from rollbook.core.component import Component, Model
from rollbook.core.field_docs import headline_of, meaning_of
from rollbook.core.ragged import Ragged
from rollbook.core.yaml import flow
from rollbook.rl.training.window import torch_for_losses
from rollbook.settings.recipe import Recipe
from rollbook.settings.recipe_text import SIZES

if TYPE_CHECKING:
    from torch import Tensor

    from rollbook.components.losses.base import Loss, LossInputs

NOTHING = "–"
GROUPS = ((0.8, 0.3, 0.6, 0.3), (1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0))
"""Rewards of the example groups."""
LENGTHS = (10, 100)
RATIOS = (0.5, 0.8, 1.0, 1.2, 1.5, 3.0)


@dataclass(frozen=True)
class Setting:
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
class Difference:
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


def differences(first: Model, second: Model) -> list[Difference]:
    """All settings that differ between two recipes, or two other groups of settings, in their order."""
    one, two = dict(_settings(first, "")), dict(_settings(second, ""))
    return [
        _difference(place, one.get(place), two.get(place))
        for place in sorted({*one, *two}, key=_order(one, two))
        if _value(one.get(place)) != _value(two.get(place))
    ]


def _order(one: Mapping[str, Any], two: Mapping[str, Any]) -> Any:
    """Places as they stand in a recipe; what only the second has comes behind what it follows there."""
    ranks = {place: (rank, 0) for rank, place in enumerate(one)}
    last, count = (-1, 0), 0
    for place in two:
        count = 0 if place in ranks else count + 1
        last = ranks.setdefault(place, (last[0], last[1] + count))
    return ranks.__getitem__


def _difference(place: str, first: Setting | None, second: Setting | None) -> Difference:
    meanings = dict.fromkeys(item.meaning for item in (first, second) if item is not None)
    section, _, name = place.partition(".")
    return Difference(
        place,
        (_value(first), _value(second)),
        " | ".join(meaning for meaning in meanings if meaning),
        name.partition(".")[0] in SIZES.get(section, ()),
    )


def _value(setting: Setting | None) -> str:
    return NOTHING if setting is None else setting.value


def _settings(model: Model, prefix: str) -> Iterator[tuple[str, Setting]]:
    """Place and value of every field; a component stands under its place, its fields below it."""
    cls = type(model)
    for field in cls.model_fields:
        value, place = getattr(model, field), f"{prefix}{field}"
        if isinstance(model, Component) and field in ("name", "path"):
            continue
        if isinstance(value, Component):
            yield place, Setting(value.name, type(value), "")
        if isinstance(value, Component) or isinstance(model, Recipe):
            yield from _settings(value, f"{place}.")
        elif isinstance(value, Model):
            yield place, Setting(flow(value.model_dump(exclude_none=True)), cls, field)
        elif isinstance(value, list) and value and isinstance(value[0], Reward):
            for reward in value:
                label = f"{place}.{reward.title}"
                yield label, Setting(reward.name, type(reward), "")
                yield from _settings(reward, f"{label}.")
        else:
            yield place, Setting(value if isinstance(value, str) else flow(value), cls, field)


# --- numbers --------------------------------------------------------------------------------------


def example_advantages(recipe: Recipe, rewards: Sequence[float]) -> list[float] | str:
    """Advantages of one group, or why there are none.

    Answers have one token each and differ in their texts; a KL in the reward is left out, and an estimator that looks
    at the whole batch sees this group only. Of several that might be drawn the first is.
    """
    estimator, bounds = recipe.compute_advantages.estimator, recipe.compute_advantages.reward_clip
    for needed, what in (
        (estimator.needs_greedy, "the reward of a greedy answer"),
        (estimator.needs_steps, "rewards of steps"),
        (estimator.needs_values, "the values of a critic"),
    ):
        if needed:
            return f"{estimator.name} reads {what}"
    values = np.array(rewards)
    values = values if bounds is None else values.clip(*bounds)
    count = len(values)
    estimated = estimator(
        AdvantageInputs(
            rewards=values,
            groups=np.zeros(count, dtype=np.int64),
            components=values[:, None],
            weights=np.ones(1),
            loss_mask=Ragged(np.ones(count, dtype=bool), np.ones(count, dtype=np.int64)),
            draws=np.arange(count) / count,
            texts=np.arange(count),
        )
    )
    return [float(value) for value in estimated.advantages]


def token_weights(recipe: Recipe) -> list[float]:
    """|∂loss/∂log-prob| of one token of a completion of each of LENGTHS, both in one step, ratio 1, advantage 1.

    To a loss of pairs the first is the chosen and the second the rejected one.

    Raises:
        RollbookError: if torch is not installed.
    """
    torch = torch_for_losses()
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    policy = torch.full(mask.shape, -1.0, dtype=torch.float64, requires_grad=True)
    gradient = _gradient(
        recipe.update_policy.loss,
        _inputs(
            policy,
            old_logprobs=policy.detach(),
            advantages=torch.ones(len(LENGTHS), 1, dtype=torch.float64),
            loss_mask=mask,
            pairs=torch.arange(len(LENGTHS))[None],
            window_pairs=1,
            window_chosen_tokens=LENGTHS[0],
            max_completion_tokens=recipe.generate_rollouts.max_completion_tokens,
        ),
    )
    return [abs(float(row[0])) for row in gradient]


def pushes(recipe: Recipe, advantage: float) -> list[float]:
    """−∂loss/∂log-prob of a token at each of RATIOS: how hard it is pushed up; below 0, down. Not for losses of pairs.

    Every token is a completion and a step of its own, so that no denominator shows.

    Raises:
        RollbookError: if torch is not installed.
    """
    torch = torch_for_losses()
    found = []
    for ratio in RATIOS:
        policy = torch.full((1, 1), -1.0, dtype=torch.float64, requires_grad=True)
        inputs = _inputs(
            policy,
            old_logprobs=policy.detach() - np.log(ratio),
            advantages=torch.full((1, 1), advantage, dtype=torch.float64),
            loss_mask=torch.ones(1, 1, dtype=torch.bool),
            max_completion_tokens=1,
        )
        found.append(-float(_gradient(recipe.update_policy.loss, inputs)))
    return found


def _inputs(policy: Tensor, **given: Any) -> LossInputs:
    """A step of its own; the reference is the policy itself, so that the KL term has neither value nor gradient."""
    from rollbook.components.losses.base import LossInputs

    return LossInputs(
        policy_logprobs=policy,
        ref_logprobs=policy.detach(),
        entropies=policy.detach().abs(),
        window_rows=len(policy),
        window_tokens=int(given["loss_mask"].sum()),
        **given,
    )


def _gradient(loss: Loss, inputs: LossInputs) -> Tensor:
    loss(inputs).loss.backward()
    gradient = inputs.policy_logprobs.grad
    assert gradient is not None
    return gradient
