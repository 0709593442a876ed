"""The decoding loop of the transformers engine: prefill, one token per step, finished rows leave the batch.

The only place where prompts are padded on the left; positions are explicit, so padding changes nothing but rounding.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rollbook.components.engines.base import Completion, GenerationRequest
from rollbook.components.engines.sampling import next_tokens, uniforms
from rollbook.core.errors import PolicyError

if TYPE_CHECKING:
    from torch import Tensor

    from rollbook.components.engines.base import Sampling

COMPACT_SHARE = 0.75
"""Finished rows are dropped from the batch once no more than this share of it is still running."""


def completion_lengths(
    ids: NDArray[np.int64], stop_token_ids: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Tokens of each completion, and whether a stop token ended it.

    The first stop token ends a completion and belongs to it; ids behind it do not count, whatever they are. Padding is
    never looked for: it may be a stop token, or come up in an answer.

    Args:
        ids: [B, limit] as sampled; a row without a stop token fills all places.
        stop_token_ids: every id that ends a completion.
    """
    stops = np.isin(ids, np.array(list(stop_token_ids), np.int64))
    stopped = np.asarray(stops.any(axis=1))
    return np.where(stopped, stops.argmax(axis=1) + 1, ids.shape[1]), stopped


@dataclass
class _Rows:
    """The rows of a batch that are still read.

    Attributes:
        places: [B] their places in the batch.
        logits: [B, V] for the next token.
        attention_mask: [B, T] of everything read so far; padding on the left.
        cache: keys and values of everything read so far.
    """

    places: Tensor
    logits: Tensor
    attention_mask: Tensor
    cache: Any

    def keep(self, rows: Tensor) -> _Rows:
        """Only these rows."""
        self.cache.batch_select_indices(rows)
        return _Rows(self.places[rows], self.logits[rows], self.attention_mask[rows], self.cache)


@dataclass
class _Written:
    """What is generated so far: ids and log-probs, [B, limit]; a row gets none behind its stop token."""

    ids: NDArray[np.int64]
    logprobs: NDArray[np.float32]

    @classmethod
    def empty(cls, rows: int, limit: int) -> _Written:
        return cls(
            np.zeros((rows, limit), np.int64),
            np.zeros((rows, limit), np.float32),
        )

    def add(self, position: int, places: Tensor, tokens: Tensor, logprobs: Tensor) -> None:
        """Writes one token of each of the rows at `places`."""
        where = places.cpu().numpy()
        self.ids[where, position] = tokens.cpu().numpy()
        self.logprobs[where, position] = logprobs.cpu().numpy()

    def completions(self, stop_token_ids: Sequence[int]) -> list[Completion]:
        lengths, stopped = completion_lengths(self.ids, stop_token_ids)
        return [
            Completion(ids[:length].tolist(), logprobs[:length].tolist(), reason)
            for ids, logprobs, length, reason in zip(
                self.ids,
                self.logprobs,
                lengths,
                np.where(stopped, "stop", "length").tolist(),
                strict=True,
            )
        ]


@dataclass
class Decoder:
    """Completes requests with one loaded model.

    Attributes:
        model: a causal language model, in evaluation mode and on its device.
        sampling: temperature, truncation and length limit.
        stop_token_ids: every id that ends a completion.
        pad_token_id: what rows are filled with; may be a stop token.
    """

    model: Any
    sampling: Sampling
    stop_token_ids: Sequence[int]
    pad_token_id: int
    _accepted: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self._accepted = frozenset(inspect.signature(self.model.forward).parameters)

    def complete(
        self, requests: Sequence[GenerationRequest], on_tokens: Callable[[int, int], None]
    ) -> list[Completion]:
        """Generates one batch; see `RolloutEngine.generate`.

        Raises:
            PolicyError: if the model's probabilities are not numbers.
        """
        import torch

        limit, device = self.sampling.max_completion_tokens, self.model.device
        written = _Written.empty(len(requests), limit)
        seeds = np.array([request.seed for request in requests], dtype=np.int64)
        greedy = torch.tensor([request.greedy for request in requests], device=device)
        running = torch.ones(len(requests), dtype=torch.bool, device=device)
        stop_ids = torch.tensor(list(self.stop_token_ids), dtype=torch.long, device=device)
        with torch.inference_mode():
            rows = self._prefilled(requests)
            for position in range(limit):
                uniform = torch.from_numpy(uniforms(seeds, position)).to(device)
                tokens, logprobs = self._chosen(rows, uniform, greedy)
                stops, alive = torch.isin(tokens, stop_ids), running[rows.places]
                written.add(position, rows.places[alive], tokens[alive], logprobs[alive])
                left = alive & ~stops
                running[rows.places] = left
                remaining, last = int(left.sum()), position + 1 == limit
                on_tokens(int(alive.sum()) - (0 if last else remaining), int(alive.sum()))
                if last or not remaining:
                    break
                if remaining <= COMPACT_SHARE * len(left):
                    rows, tokens = rows.keep(left.nonzero().squeeze(-1)), tokens[left]
                rows = self._read(rows, tokens)
        return written.completions(self.stop_token_ids)

    def _chosen(self, rows: _Rows, uniform: Tensor, greedy: Tensor) -> tuple[Tensor, Tensor]:
        """Next tokens and their log-probs, [B] each; `uniform` and `greedy` are those of the whole batch."""
        tokens, logprobs = next_tokens(
            rows.logits, self.sampling, uniform[rows.places], greedy[rows.places]
        )
        if bool(logprobs.isnan().any()):
            raise PolicyError(
                "the policy's probabilities are not numbers; its weights are damaged or diverged",
                "look at grad_norm and ratio_max in optimizer_steps of the iteration that wrote it",
            )
        return tokens, logprobs

    def _prefilled(self, requests: Sequence[GenerationRequest]) -> _Rows:
        """Reads each distinct prompt once and hands its keys and values to all of its rows."""
        import torch

        from rollbook.components.engines.lean.cache import for_rows

        prompts = [tuple(request.prompt_token_ids) for request in requests]
        distinct = {prompt: place for place, prompt in enumerate(dict.fromkeys(prompts))}
        width = max(map(len, distinct))
        ids = torch.full((len(distinct), width), self.pad_token_id, dtype=torch.long)
        mask = torch.zeros((len(distinct), width), dtype=torch.long)
        for place, prompt in enumerate(distinct):
            ids[place, width - len(prompt) :] = torch.tensor(prompt)
            mask[place, width - len(prompt) :] = 1
        ids, mask = ids.to(self.model.device), mask.to(self.model.device)
        output = self._forward(ids, mask, (mask.cumsum(-1) - 1).clamp(min=0), None)
        owners = torch.tensor([distinct[prompt] for prompt in prompts], device=mask.device)
        for_rows(output.past_key_values, owners)
        return _Rows(
            torch.arange(len(prompts), device=mask.device),
            output.logits[owners, -1],
            mask[owners],
            output.past_key_values,
        )

    def _read(self, rows: _Rows, tokens: Tensor) -> _Rows:
        """Reads one more token of each row."""
        import torch

        mask = torch.cat([rows.attention_mask, rows.attention_mask.new_ones(len(tokens), 1)], dim=1)
        output = self._forward(tokens[:, None], mask, mask.sum(-1, keepdim=True) - 1, rows.cache)
        return _Rows(rows.places, output.logits[:, -1], mask, output.past_key_values)

    def _forward(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> Any:
        """One call of the model; arguments that its architecture does not know are left out."""
        known = {"position_ids": positions, "logits_to_keep": 1}
        return self.model(
            input_ids=ids,
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
            **{name: value for name, value in known.items() if name in self._accepted},
        )
