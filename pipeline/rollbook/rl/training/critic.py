"""Runs and trains a critic beside the policy: the same micro-batches, an optimizer and a gradient norm of its own.

V[t] is taken where token t is predicted, as its log-prob is. The gradient of the value loss reaches the policy's
weights where the critic reads the policy's hidden states, and moves them by the policy's optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rollbook.components.critics.value_loss import ValueInputs, value_loss
from rollbook.components.policies.misfit import misfit
from rollbook.core.errors import TrainingError
from rollbook.core.ragged import IntArray, Ragged
from rollbook.rl.tokens import TokenBatch, on_grid
from rollbook.rl.training.checkpoint import checkpoint_layers
from rollbook.rl.training.critic_state import CriticState
from rollbook.rl.training.logprobs import completion_hidden
from rollbook.rl.training.optimizer import OptimizerState, clip_gradient, make_optimizer, moments_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from rollbook.components.critics.base import Critic
    from rollbook.rl.training.rows import TrainingRows
    from rollbook.settings.recipe_sections import UpdatePolicy

NOT_SHOWN = "its output head is not where it says, so nobody can see what it sees"


class ValueFunction(torch.nn.Module):
    """What says V: a head on hidden states, with or without a transformer of its own. Parameters are float32.

    Args:
        critic: says what the head sees.
        width: of the hidden states.
        backbone: transformer of its own; None: the policy's hidden states are read.
    """

    def __init__(self, critic: Critic, width: int, backbone: PreTrainedModel | None) -> None:
        super().__init__()
        self.critic, self.backbone = critic, backbone
        self.head = torch.nn.Linear(width, 1)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)

    def forward(self, batch: TokenBatch, policy_hidden: Tensor | None, precision: str) -> Tensor:
        """[B, T] V of each completion token, float32, 0 where there is no token.

        Args:
            batch: rows.
            policy_hidden: [N, H] `TokenLogprobs.hidden` of the policy for them.
            precision: of the transformer; the head always computes in float32.

        Raises:
            TrainingError: if the model does not show its hidden states.
        """
        hidden = policy_hidden
        if self.backbone is not None:
            hidden = completion_hidden(self.backbone, batch, precision)
        if hidden is None:
            raise TrainingError(
                f"update_policy.critic: of this architecture {NOT_SHOWN}",
                "take an estimator without a critic, such as group",
            )
        values = self.head(self.critic.seen(hidden).float()).squeeze(-1)
        return on_grid(values, batch.completion_mask)


def open_critic(
    critic: Critic,
    state: CriticState,
    policy: Path,
    model: PreTrainedModel,
    gradient_checkpointing: bool = False,
) -> ValueFunction:
    """The critic as `state` left it, or a fresh one, on the device of the policy and in evaluation mode.

    Args:
        critic: of the recipe.
        state: its state; without weights it begins anew.
        policy: folder of the policy at hand.
        model: that policy.
        gradient_checkpointing: whether a transformer of its own computes activations again.

    Raises:
        TrainingError: if the weights are those of another model, or the architecture cannot have a critic.
        PolicyError: if the folder cannot be loaded.
    """
    device = next(model.parameters()).device
    backbone = critic.backbone(policy, device)
    read = model if backbone is None else backbone
    head = read.get_output_embeddings()
    if not isinstance(head, torch.nn.Module) or not isinstance(head.weight, Tensor):
        raise TrainingError(
            f"update_policy.critic: of {type(read).__name__} {NOT_SHOWN}",
            "take an estimator without a critic, such as group",
        )
    width = head.weight.shape[-1]
    if backbone is not None:
        if gradient_checkpointing:
            checkpoint_layers(backbone)
        backbone.set_output_embeddings(torch.nn.Identity())
    function = ValueFunction(critic, width, backbone).to(device)
    if state.weights:
        _restore(function, state.weights)
    return function


def _restore(function: ValueFunction, weights: Mapping[str, Tensor]) -> None:
    """Puts stored weights in, in place.

    Raises:
        TrainingError: if names or shapes differ.
    """
    own = dict(function.named_parameters())
    if differs := misfit(weights, own):
        raise TrainingError(
            f"the critic of the iteration before belongs to another model: {differs}",
            "start the chain from a policy whose critic was trained with it",
        )
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(weights[name])


@dataclass(frozen=True)
class _Window:
    """Denominators of an optimizer step: what is learned from of all of its rows."""

    rows: int
    tokens: int
    groups: int
    group_tokens: IntArray


class CriticUpdate:
    """The gradient steps of a critic in one iteration, taken together with those of the policy.

    Args:
        function: the critic.
        update: settings of the recipe; with a critic.
        state: what the function was opened with.
        rows: of the iteration, with returns and values.
        max_completion_tokens: the generation limit.
        iteration: its key, for errors.
    """

    def __init__(
        self,
        function: ValueFunction,
        update: UpdatePolicy,
        state: CriticState,
        rows: TrainingRows,
        max_completion_tokens: int,
        iteration: str,
    ) -> None:
        self.function, self.rows, self.iteration = function, rows, iteration
        self.settings, self.precision = function.critic, update.precision
        self.max_completion_tokens = max_completion_tokens
        self.parameters = dict(function.named_parameters())
        self.optimizer_step = state.optimizer_step
        self.optimizer = make_optimizer(
            self.parameters,
            update.model_copy(update={"learning_rate": update.critic_learning_rate}),
            OptimizerState(state.optimizer_step, state.moments),
        )
        self.mask = rows.value_mask
        self.tokens = self.mask.counts()
        self._window = _Window(1, 1, 1, self.tokens)
        self._sums = torch.zeros(2, dtype=torch.float64, device=function.head.weight.device)

    @property
    def moves_alone(self) -> bool:
        """Whether the policy stands still in the step that has begun."""
        return self.optimizer_step <= self.settings.warmup_steps

    def begin_step(self, index: IntArray) -> None:
        """A step over the rows at `index`, whole groups."""
        self.optimizer_step += 1
        self.optimizer.zero_grad()
        tokens = self.tokens[index]
        groups = self.rows.groups[index]
        of_group = np.bincount(groups, tokens, int(self.rows.groups.max(initial=-1)) + 1)
        self._window = _Window(
            rows=max(int((tokens > 0).sum()), 1),
            tokens=int(tokens.sum()),
            groups=max(len(np.unique(groups[tokens > 0])), 1),
            group_tokens=of_group.astype(np.int64),
        )
        self._sums.zero_()

    def loss(self, index: IntArray, batch: TokenBatch, policy_hidden: Tensor | None) -> Tensor:
        """The weighted value loss of one micro-batch, a scalar with gradient.

        Args:
            index: [B] its rows.
            batch: the same as input of a model.
            policy_hidden: what the policy's head saw.
        """
        values = self.function(batch, policy_hidden, self.precision)

        def grid(lists: Ragged) -> Tensor:
            return torch.from_numpy(lists.rows(index).padded(0)).to(values.device)

        rows, window = self.rows, self._window
        assert rows.old_values is not None and rows.returns is not None
        outputs = value_loss(
            ValueInputs(
                values=values,
                old_values=grid(rows.old_values).to(values.dtype),
                returns=grid(rows.returns).to(values.dtype),
                loss_mask=grid(self.mask),
                window_rows=window.rows,
                window_tokens=window.tokens,
                max_completion_tokens=self.max_completion_tokens,
                group_tokens=torch.from_numpy(window.group_tokens[rows.groups[index]]).to(
                    values.device
                ),
                window_groups=window.groups,
            ),
            self.settings.value_clip,
            self.settings.aggregation,
        )
        self._sums += torch.stack([outputs.loss.detach(), outputs.clipped.sum()])
        return self.settings.coef * outputs.loss

    def finish_step(self) -> dict[str, float]:
        """Moves the critic. Returns metrics: the value loss without its weight, and the gradient norm before clipping.

        Raises:
            TrainingError: if one of them is not finite.
        """
        grad_norm = clip_gradient(self.parameters.values(), self.settings.max_grad_norm)
        loss, clipped = self._sums.tolist()
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            raise TrainingError(
                f"optimizer step {self.optimizer_step} of the critic, in {self.iteration}: value loss is {loss}, "
                f"gradient norm {grad_norm}; nothing was written",
                "lower update_policy.critic.learning_rate, or look for extreme rewards in the scores table",
            )
        self.optimizer.step()
        return {
            "value_loss": loss,
            "value_clip_ratio": clipped / max(self._window.tokens, 1),
            "critic_grad_norm": grad_norm,
        }

    def state(self) -> CriticState:
        """What the next iteration goes on from."""
        return CriticState(
            self.settings.label,
            self.optimizer_step,
            {name: value.detach().cpu() for name, value in self.parameters.items()},
            moments_of(self.optimizer, self.parameters),
        )
