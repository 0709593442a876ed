"""What a recipe does to example groups and tokens, in numbers that its own estimator and loss compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rollbook.components.advantages.base import AdvantageInputs
from rollbook.core.ragged import Ragged
from rollbook.rl.training.window import torch_for_losses
from rollbook.settings.recipe import Recipe

if TYPE_CHECKING:
    from torch import Tensor

    from rollbook.components.losses.base import Loss, LossInputs

GROUPS = ((0.8, 0.3, 0.6, 0.3), (1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0))
"""Rewards of the example groups."""
LENGTHS = (10, 100)
RATIOS = (0.5, 0.8, 1.0, 1.2, 1.5, 3.0)


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
