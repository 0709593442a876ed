"""Log-probs and entropies of completion tokens under a policy.

The language-model head only sees the positions that predict completion tokens: logits of prompts and padding, most of
[B, L, V] for a real vocabulary, are never made. Softmax is taken in float32 (bf16 logits between 16 and 32 are 0.125
apart, 6 % of every ratio), of logits / temperature, the distribution that was sampled from.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pipeline.tokens import TokenBatch, on_grid

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class TokenLogprobs:
    """What a policy says about the completions of a batch, [B, T], 0 where there is no token.

    Attributes:
        logprobs: of each token, nats; carries the gradient.
        entropies: of the distribution each token was drawn from, nats; with gradient if it was asked for.
    """

    logprobs: Tensor
    entropies: Tensor


def completion_logprobs(
    model: PreTrainedModel,
    batch: TokenBatch,
    temperature: float,
    precision: str = "float32",
    entropy_gradient: bool = False,
) -> TokenLogprobs:
    """Runs the policy once over a batch.

    Args:
        model: in evaluation mode, so that old and current log-probs agree at the first step.
        batch: right-padded rows.
        temperature: logits are divided by it.
        precision: `bfloat16` computes the model under autocast.
        entropy_gradient: whether entropies carry a gradient, for an entropy bonus.
    """
    logits = _completion_logits(model, batch, precision)
    logprobs, entropies = selected_logprobs(
        logits, batch.completion_ids, temperature, entropy_gradient
    )
    mask = batch.completion_mask
    return TokenLogprobs(on_grid(logprobs, mask), on_grid(entropies, mask))


def selected_logprobs(
    logits: Tensor, ids: Tensor, temperature: float, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """Log-prob of each id and entropy of each distribution, nats.

    Args:
        logits: [..., V]; computed in float32 at least.
        ids: [...] chosen tokens.
        temperature: logits are divided by it, for log-probs and entropies alike.
        entropy_gradient: whether entropies carry a gradient; costs another [..., V].
    """
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    logprobs = exact.log_softmax(-1)
    selected = logprobs.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropies = -(logprobs.exp() * logprobs).sum(-1)
    return selected, entropies


def _completion_logits(model: PreTrainedModel, batch: TokenBatch, precision: str) -> Tensor:
    """[N, V] logits that score the completion tokens, row by row."""
    autocast = torch.autocast(
        batch.input_ids.device.type, torch.bfloat16, enabled=precision == "bfloat16"
    )
    with autocast, _head_sees(model, batch.predicting):
        logits: Tensor = model(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            position_ids=batch.position_ids,
            use_cache=False,
        ).logits
    if logits.shape[:2] == batch.input_ids.shape:  # a model whose head is not where it says
        return logits.flatten(0, 1)[batch.predicting]
    return logits.squeeze(0)


@contextlib.contextmanager
def _head_sees(model: PreTrainedModel, places: Tensor) -> Iterator[None]:
    """Makes the head compute only these places of the flattened batch, as one row.

    This goes for every architecture, and what a model does to its logits afterwards (scaling, soft-capping) stays.
    """
    head = model.get_output_embeddings()
    if head is None:
        yield
        return

    def select(_: torch.nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        hidden, *rest = arguments
        return (hidden.flatten(0, 1)[places].unsqueeze(0), *rest)

    handle = head.register_forward_pre_hook(select)
    try:
        yield
    finally:
        handle.remove()
