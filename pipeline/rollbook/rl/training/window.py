"""The whole of an optimizer step, and from it the loss inputs of each micro-batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rollbook.components.losses.base import Loss, LossInputs
from rollbook.components.losses.masks import top_entropy
from rollbook.core.errors import RollbookError
from rollbook.core.ragged import IntArray, Ragged

if TYPE_CHECKING:
    from torch import Tensor

    from rollbook.rl.training.rows import TrainingRows


@dataclass(frozen=True)
class Window:
    """The whole of an optimizer step, as its micro-batches must know it.

    Attributes:
        rows: completions that means over rows divide by.
        tokens: trained-on tokens.
        groups: of the step; they are whole.
        policy_mask: per completion token of the iteration, whether its policy term counts; None: all do.
        policy_tokens: trained-on tokens whose policy term counts; None: all of them.
        pairs: of the step; None: the loss is not one of pairs.
        chosen_tokens: trained-on tokens of their chosen completions, each as often as it is chosen; None likewise.
    """

    rows: int
    tokens: int
    groups: int
    policy_mask: Ragged | None = None
    policy_tokens: int | None = None
    pairs: int | None = None
    chosen_tokens: int | None = None


def torch_for_losses() -> Any:
    """The module, for commands that evaluate losses and are of use without it.

    Raises:
        RollbookError: if torch is not installed.
    """
    try:
        import torch
    except ImportError:
        raise RollbookError(
            "torch is not installed, so losses cannot be evaluated", "pip install 'rollbook[train]'"
        ) from None
    return torch


def window_of(rows: TrainingRows, index: IntArray, loss: Loss, top_share: float) -> Window:
    """The step that trains on the rows at `index`.

    Args:
        rows: of the iteration.
        index: rows of the step, whole groups.
        loss: says whether rows without tokens count.
        top_share: `update_policy.top_entropy`; below 1 the rows have `old_entropies`.
    """
    tokens = rows.trained_tokens[index]
    counted = len(index) if loss.count_empty_rows else int((tokens > 0).sum())
    sizes = (max(counted, 1), int(tokens.sum()), len(np.unique(rows.groups[index])))
    if (pairs := rows.pairs_among(index)) is not None:
        return Window(*sizes, pairs=len(pairs), chosen_tokens=int(tokens[pairs[:, 0]].sum()))
    if rows.old_entropies is None:
        return Window(*sizes)
    places = rows.loss_mask.places(index)
    everywhere = np.zeros(len(rows.loss_mask.values), bool)
    chosen = top_entropy(
        rows.old_entropies.values[places], rows.loss_mask.values[places], top_share
    )
    everywhere[places] = chosen
    return Window(*sizes, Ragged(everywhere, rows.loss_mask.lengths), int(chosen.sum()))


def loss_inputs(
    rows: TrainingRows,
    index: IntArray,
    window: Window,
    policy_logprobs: Tensor,
    entropies: Tensor | None,
    max_completion_tokens: int,
) -> LossInputs:
    """The rows at `index` as one micro-batch, on the device of `policy_logprobs` and in its precision.

    Args:
        rows: of the iteration.
        index: [B] rows of the micro-batch.
        window: the step they belong to.
        policy_logprobs, entropies: [B, T] under the current policy.
        max_completion_tokens: limit the rollouts were generated under.
    """
    import torch

    def tensor(array: Any) -> Tensor:
        made = torch.from_numpy(array).to(policy_logprobs.device)
        return made.to(policy_logprobs.dtype) if made.is_floating_point() else made

    def grid(lists: Ragged | None) -> Any:
        return None if lists is None else tensor(lists.rows(index).padded(0))

    advantages = grid(rows.token_advantages)
    return LossInputs(
        policy_logprobs=policy_logprobs,
        advantages=tensor(rows.advantages[index, None]) if advantages is None else advantages,
        loss_mask=grid(rows.loss_mask),
        window_rows=window.rows,
        window_tokens=window.tokens,
        max_completion_tokens=max_completion_tokens,
        old_logprobs=grid(rows.old_logprobs),
        ref_logprobs=grid(rows.ref_logprobs),
        sampling_logprobs=grid(rows.sampling_logprobs),
        entropies=entropies,
        rollout_weights=grid(rows.rollout_weights),
        policy_mask=grid(window.policy_mask),
        window_policy_tokens=window.policy_tokens,
        group_tokens=tensor(rows.group_tokens[index]),
        window_groups=window.groups,
        pairs=None if rows.pairs is None else tensor(rows.pairs_among(index)),
        window_pairs=window.pairs,
        window_chosen_tokens=window.chosen_tokens,
    )
