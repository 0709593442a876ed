"""From lists of tokens to batches of a model and back: padding, masks and the shift by one.

A row is its prompt directly followed by its completion, padded on the right only. The logits at position t − 1
score the token at position t, so the first completion token is scored at the prompt's last position.

Rows with the same prompt may share a sequence: the prompt stands there once, the completions behind it one after the
other, and a mask shows each of them the prompt and itself (arXiv 2506.05433). What each token sees, and the position it
believes to be at, are those of a row of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollbook.core.ragged import IntArray, Ragged, mask_of

PADDING_ID = 0
"""Any valid id will do: padded positions are masked, and nothing is derived from their ids."""


@dataclass(frozen=True)
class TokenBatch:
    """`B` rows ready for a model, in `S` sequences of `L` positions; `T` of the longest completion alone.

    Attributes:
        input_ids: [S, L] prompt, completion or completions, padding.
        attention_mask: [S, L], 1 on prompt and completion; or [S, 1, L, L] bool, True where a position sees another.
        position_ids: [S, L] counted from each row's own beginning.
        completion_mask: [B, T] bool, True on completion tokens.
        completion_ids: [N] the completion tokens, row by row.
        predicting: [N] places in the flattened [S·L] positions that score those tokens.
    """

    input_ids: Tensor
    attention_mask: Tensor
    position_ids: Tensor
    completion_mask: Tensor
    completion_ids: Tensor
    predicting: Tensor


def token_batch(prompts: Ragged, completions: Ragged, device: torch.device) -> TokenBatch:
    """Puts every prompt and its completion next to each other.

    Args:
        prompts: ids of each row's prompt, at least one.
        completions: ids of each row's completion.
        device: where the tensors go.
    """
    ends = prompts.lengths + completions.lengths
    occupied = mask_of(ends)
    places = np.arange(occupied.shape[1])[None, :]
    is_prompt = places < prompts.lengths[:, None]
    ids = np.full(occupied.shape, PADDING_ID, dtype=np.int64)
    ids[is_prompt] = prompts.values
    ids[occupied & ~is_prompt] = completions.values
    scores_completion = (places >= prompts.lengths[:, None] - 1) & (places < ends[:, None] - 1)

    return _batch(
        completions,
        device,
        input_ids=ids,
        attention_mask=occupied.astype(np.int64),
        position_ids=np.tile(places, (len(ids), 1)),
        predicting=np.flatnonzero(scores_completion),
    )


def shared_token_batch(
    prompts: Ragged, completions: Ragged, sequence_of: IntArray, device: torch.device
) -> TokenBatch:
    """Puts every prompt once before the completions of its sequence.

    Args:
        prompts: ids of each row's prompt, at least one.
        completions: ids of each row's completion.
        sequence_of: [B] number of each row's sequence, from 0 and never falling; its rows have the same prompt.
        device: where the tensors go.
    """
    first_rows = np.unique(sequence_of, return_index=True)[1]
    lengths = prompts.lengths[first_rows]
    total = np.bincount(sequence_of, completions.lengths).astype(np.int64)
    width = int((lengths + total).max(initial=0))
    # Where each completion begins in its sequence: behind the prompt and the completions before it.
    before = np.cumsum(completions.lengths) - completions.lengths
    starts = lengths[sequence_of] + before - before[first_rows][sequence_of]
    row, sequence = completions.row_of, sequence_of[completions.row_of]
    offset = np.arange(len(completions.values)) - completions.starts[row]
    place = starts[row] + offset

    ids = np.full((len(first_rows), width), PADDING_ID, dtype=np.int64)
    positions = np.zeros_like(ids)
    # Part of the sequence that a position belongs to: 0 the prompt, 1 … its completions, −1 padding.
    part = np.full(ids.shape, -1, dtype=np.int64)
    is_prompt = mask_of(lengths)
    prompt = (*is_prompt.nonzero(),)
    ids[prompt], part[prompt] = prompts.rows(first_rows).values, 0
    positions[prompt] = prompt[1]
    ids[sequence, place] = completions.values
    positions[sequence, place] = lengths[sequence] + offset
    part[sequence, place] = 1 + row
    seen = (part[:, :, None] == part[:, None, :]) | (part[:, None, :] == 0)
    seen &= np.tri(width, dtype=bool)
    seen |= np.eye(width, dtype=bool)  # padding sees itself: a softmax over nothing is not a number
    predicting = sequence * width + np.where(offset, place - 1, lengths[sequence] - 1)
    return _batch(
        completions,
        device,
        input_ids=ids,
        attention_mask=seen[:, None],
        position_ids=positions,
        predicting=predicting,
    )


def _batch(completions: Ragged, device: torch.device, **arrays: NDArray[Any]) -> TokenBatch:
    def tensor(array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(device)

    return TokenBatch(
        **{name: tensor(array) for name, array in arrays.items()},
        completion_mask=tensor(mask_of(completions.lengths)),
        completion_ids=tensor(completions.values.astype(np.int64)),
    )


def on_grid(values: Tensor, mask: Tensor) -> Tensor:
    """[B, T] with the [N] `values` on the True places of `mask`, row by row, and 0 elsewhere."""
    grid = values.new_zeros(mask.shape)
    return grid.index_put(mask.nonzero(as_tuple=True), values)


def off_grid(grid: Tensor, mask: Tensor) -> NDArray[Any]:
    """[N] values of [B, T] `grid` on the True places of `mask`, row by row."""
    return grid.detach()[mask].cpu().numpy()
