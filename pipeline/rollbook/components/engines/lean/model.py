"""What makes a loaded model cheaper to generate with and changes no number but by rounding."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

ATTENTION = "rollbook_grouped_sdpa"
"""Name under which transformers finds `grouped_attention`."""
SMALL_HEAD_BYTES = 2**20
"""An output head up to this size is run as it comes: copying its weights for each prompt costs nothing."""


def grouped_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """transformers' `sdpa`, but heads that share keys and values read them in place also where there is padding.

    transformers writes them out once per head then, as kernels on CUDA need; the one for processors does not.
    """
    shared = getattr(module, "num_key_value_groups", 1) > 1
    if not shared or attention_mask is None or options.get("position_bias") is not None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, **options
        )
    read = scaled_dot_product_attention(
        query, key, value, attention_mask, dropout, scale=scaling, enable_gqa=True
    )
    return read.transpose(1, 2).contiguous(), None


def make_lean(model: Any) -> None:
    """Prepares a loaded model for generation, in place.

    Attention is changed on processors only, and only where it is `sdpa`.
    """
    changeable = model._can_set_attn_implementation()
    if model.device.type == "cpu" and model.config._attn_implementation == "sdpa" and changeable:
        AttentionInterface.register(ATTENTION, grouped_attention)
        AttentionMaskInterface.register(ATTENTION, sdpa_mask)
        model.set_attn_implementation(ATTENTION)
    head = model.get_output_embeddings()
    weights = getattr(head, "weight", None)
    if weights is not None and weights.numel() * weights.element_size() > SMALL_HEAD_BYTES:
        head.register_forward_pre_hook(_in_one_piece)


def _in_one_piece(_head: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Last positions as a tensor of their own: of a view over all positions, torch multiplies each row with a copy of
    the weights."""
    return (given[0].contiguous(), *given[1:])
