"""From lists of tokens to batches of a model and back: padding, masks and the shift by one.

A row is its prompt directly followed by its completion, padded on the right only. The logits at position t − 1
score the token at position t, so the first completion token is scored at the prompt's last position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.ragged import Ragged, mask_of

PADDING_ID = 0
"""Any valid id will do: padded positions are masked, and nothing is derived from their ids."""


@dataclass(frozen=True)
class TokenBatch:
    """`B` rows ready for a model: `L` positions of prompt and completion, `T` of the completion alone.

    Attributes:
        input_ids: [B, L] prompt, completion, padding.
        attention_mask: [B, L] 1 on prompt and completion.
        position_ids: [B, L] counted from each row's own beginning.
        completion_mask: [B, T] bool, True on completion tokens.
        completion_ids: [N] the completion tokens, row by row.
        predicting: [N] places in the flattened [B·L] positions that score those tokens.
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

    def tensor(array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(device)

    return TokenBatch(
        input_ids=tensor(ids),
        attention_mask=tensor(occupied.astype(np.int64)),
        position_ids=tensor(np.tile(places, (len(ids), 1))),
        completion_mask=tensor(mask_of(completions.lengths)),
        completion_ids=tensor(completions.values.astype(np.int64)),
        predicting=tensor(np.flatnonzero(scores_completion)),
    )


def on_grid(values: Tensor, mask: Tensor) -> Tensor:
    """[B, T] with the [N] `values` on the True places of `mask`, row by row, and 0 elsewhere."""
    grid = values.new_zeros(mask.shape)
    return grid.index_put(mask.nonzero(as_tuple=True), values)


def off_grid(grid: Tensor, mask: Tensor) -> NDArray[Any]:
    """[N] values of [B, T] `grid` on the True places of `mask`, row by row."""
    return grid.detach()[mask].cpu().numpy()
