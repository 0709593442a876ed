"""Whether completions of one prompt may share a sequence in a model, and up to what length that pays.

Sharing needs an attention that takes any mask. What a configuration says of itself is not believed alone: the first
rows are measured both ways, once per stage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rollbook.core.ragged import IntArray
from rollbook.rl.training.batches import MicroBatch, batch_of
from rollbook.rl.training.logprobs import completion_logprobs

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from rollbook.rl.training.rows import Rows

TAKES_ANY_MASK = ("sdpa",)
"""Attention implementations of transformers; `eager` adds the mask up instead, `flash_attention_2` takes none."""
MASKED_LAYERS = ("full_attention", "sliding_attention")
TOLERANCE_NATS = 1e-3
"""Of a log-prob in float32, where rounding alone makes up to 1e-4; a token that sees the wrong ones is off by more."""


def break_even_tokens(model: PreTrainedModel, rows: Rows) -> float | None:
    """Length of a sequence at which attention costs as much as all matrices; None: nothing may be shared.

    Args:
        model: in evaluation mode, in float32.
        rows: of the iteration.
    """
    config: Any = model.config.get_text_config()
    heads = getattr(config, "num_attention_heads", None)
    width = heads * getattr(config, "head_dim", 0) if heads else 0
    width = width or getattr(config, "hidden_size", None)
    layers = getattr(config, "num_hidden_layers", None)
    together = _of_one_prompt(rows)
    if not width or not layers or together is None or not _takes_any_mask(model, rows):
        return None
    if not _agrees(model, rows, together):
        return None
    embeddings = {id(model.get_input_embeddings().weight)}
    if (head := model.get_output_embeddings()) is not None:
        embeddings.add(id(head.weight))
    matrices = sum(
        value.numel() * (_active_share(config, len(value)) if value.ndim == 3 else 1)
        for value in model.parameters()
        if value.ndim >= 2 and id(value) not in embeddings
    )
    # Multiplications per position: one per weight in use, and 2 · width · L per layer for scores and their sum, where
    # width is that of all heads together.
    return matrices / (2 * width * layers)


def _active_share(config: Any, experts: int) -> float:
    """Share of stacked experts that a token passes through."""
    return min(1.0, (getattr(config, "num_experts_per_tok", None) or experts) / experts)


def _takes_any_mask(model: PreTrainedModel, rows: Rows) -> bool:
    config: Any = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None)
    return (
        config._attn_implementation in TAKES_ANY_MASK
        and kinds.issubset(MASKED_LAYERS)
        and (window is None or int(rows.lengths.max(initial=0)) <= window)
    )


def _of_one_prompt(rows: Rows) -> IntArray | None:
    """Two rows with tokens and the same prompt, the first there are."""
    seen: dict[bytes, int] = {}
    for row in np.flatnonzero(rows.completions.lengths):
        prompt = rows.prompts.key_of(row)
        if prompt in seen:
            return np.array([seen[prompt], row])
        seen[prompt] = int(row)
    return None


def _agrees(model: PreTrainedModel, rows: Rows, together: IntArray) -> bool:
    """Whether two rows have the same log-probs in one sequence as in two."""
    device = next(model.parameters()).device
    found = []
    for sequence_of in (np.arange(2), np.zeros(2, np.int64)):
        batch = batch_of(MicroBatch(together, sequence_of), rows.prompts, rows.completions, device)
        try:
            with torch.inference_mode():
                found.append(completion_logprobs(model, batch, 1.0).logprobs)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, IndexError, TypeError):  # a mask it cannot take
            return False
    return bool((found[0] - found[1]).abs().max() <= TOLERANCE_NATS)
