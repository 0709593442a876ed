"""Log-probs and entropies of completion tokens under a policy.

The language-model head only sees the positions that predict completion tokens: logits of prompts and padding, most of
[B, L, V] for a real vocabulary, are never made. Softmax is taken in float32 (bf16 logits between 16 and 32 are 0.125
apart, 6 % of every ratio), of logits / temperature, the distribution that was sampled from.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rollbook.rl.tokens import TokenBatch, on_grid

if TYPE_CHECKING:
    from transformers import PreTrainedModel


LOGITS_AT_ONCE = 2**25
"""Numbers of a [N, V] tensor that may exist, 134 MB in float32; a vocabulary of 50,000 scores 670 tokens at once."""
_shaping_logits: WeakSet[torch.nn.Module] = WeakSet()
"""Models that scale or cap what their head makes, found out once."""


@dataclass(frozen=True)
class TokenLogprobs:
    """What a policy says about the completions of a batch, [B, T], 0 where there is no token.

    Attributes:
        logprobs: of each token, nats; carries the gradient.
        entropies: of the distribution each token was drawn from, nats; with gradient if it was asked for.
        hidden: [N, H] what the language-model head saw where it predicted each completion token, row by row; carries
            the gradient. None for a model whose head is not where it says.
    """

    logprobs: Tensor
    entropies: Tensor
    hidden: Tensor | None = None


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
    with _autocast(batch, precision):
        logprobs, entropies, hidden = _scored(model, batch, temperature, entropy_gradient)
    mask = batch.completion_mask
    return TokenLogprobs(on_grid(logprobs, mask), on_grid(entropies, mask), hidden)


def completion_hidden(model: PreTrainedModel, batch: TokenBatch, precision: str) -> Tensor | None:
    """[N, H] what the head of a model sees where it predicts each completion token, row by row; no logits are made.

    Args:
        model: in evaluation mode.
        batch: right-padded rows.
        precision: `bfloat16` computes the model under autocast.

    Returns:
        The hidden states, with their gradient; None for a model whose head is not where it says.
    """
    with _autocast(batch, precision):
        return _seen_by(model.get_output_embeddings(), model, batch)[0]


def _autocast(batch: TokenBatch, precision: str) -> torch.autocast:
    return torch.autocast(
        batch.input_ids.device.type, torch.bfloat16, enabled=precision == "bfloat16"
    )


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
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if temperature != 1:
        exact = exact / temperature
    logprobs = exact.log_softmax(-1)
    selected = logprobs.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropies = -(logprobs.exp() * logprobs).sum(-1)
    return selected, entropies


def _scored(
    model: PreTrainedModel, batch: TokenBatch, temperature: float, entropy_gradient: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """[N] log-probs and entropies of the completion tokens, row by row, and what the head saw; it sees nothing else."""
    ids, head = batch.completion_ids, model.get_output_embeddings()
    at_once = max(1, LOGITS_AT_ONCE // model.config.get_text_config().vocab_size)
    if head is not None and len(ids) > at_once and model not in _shaping_logits:
        hidden = _hidden(model, batch, head)
        if hidden is not None:
            parts = _in_chunks(head, hidden, ids, at_once, temperature, entropy_gradient)
            return *parts, hidden
        _shaping_logits.add(model)
    seen: list[Tensor] = []

    def predicting(hidden: Tensor) -> Tensor:
        seen.append(hidden[batch.predicting])
        return seen[0]

    with _head_sees(head, predicting):
        logits = _logits(model, batch)
    if logits.shape[:2] == batch.input_ids.shape:  # a model whose head is not where it says
        logits = logits.flatten(0, 1)[batch.predicting]
    scored = selected_logprobs(logits.squeeze(0), ids, temperature, entropy_gradient)
    return *scored, seen[0] if seen else None


def _hidden(model: PreTrainedModel, batch: TokenBatch, head: torch.nn.Module) -> Tensor | None:
    """[N, H] what the head sees for the completion tokens; None if its output is not the model's logits as they are.

    Some models scale or cap their logits behind the head; one position tells.
    """
    hidden, logits = _seen_by(head, model, batch)
    if hidden is None:
        return None
    with torch.no_grad():
        plain = torch.equal(head(hidden[None, :1]), logits)
    return hidden if plain else None


def _seen_by(
    head: torch.nn.Module | None, model: PreTrainedModel, batch: TokenBatch
) -> tuple[Tensor | None, Tensor]:
    """[N, H] what the head sees for the completion tokens, and the model's logits at the first of them."""
    seen: list[Tensor] = []

    def first(hidden: Tensor) -> Tensor:
        seen.append(hidden[batch.predicting])
        return seen[0][:1]

    with _head_sees(head, first):
        logits = _logits(model, batch)
    return seen[0] if seen else None, logits


def _in_chunks(
    head: torch.nn.Module,
    hidden: Tensor,
    ids: Tensor,
    at_once: int,
    temperature: float,
    entropy_gradient: bool,
) -> tuple[Tensor, Tensor]:
    """The same a few rows at a time: [N, V] logits never exist, in the backward pass they are computed again."""

    def scored(hidden: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        return selected_logprobs(head(hidden[None])[0], ids, temperature, entropy_gradient)

    parts = [
        checkpoint(scored, *part, use_reentrant=False) if torch.is_grad_enabled() else scored(*part)
        for part in zip(hidden.split(at_once), ids.split(at_once), strict=True)
    ]
    logprobs, entropies = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def _logits(model: PreTrainedModel, batch: TokenBatch) -> Tensor:
    logits: Tensor = model(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        position_ids=batch.position_ids,
        use_cache=False,
    ).logits
    return logits


@contextlib.contextmanager
def _head_sees(head: torch.nn.Module | None, chosen: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Makes the head compute only what is chosen of the flattened batch, as one row.

    This goes for every architecture, and what a model does to its logits afterwards (scaling, soft-capping) stays.
    """
    if head is None:
        yield
        return

    def select(_: torch.nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        hidden, *rest = arguments
        return (chosen(hidden.flatten(0, 1)).unsqueeze(0), *rest)

    handle = head.register_forward_pre_hook(select)
    try:
        yield
    finally:
        handle.remove()
