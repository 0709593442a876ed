"""Keys and values of a batch with room behind them, so that a step writes its tokens and copies nothing else."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

ROOM = 64
"""Tokens that are made room for at once. Room for the whole limit would cost memory that few completions use."""


class RoomyLayer(DynamicLayer):
    """A full-attention layer's keys and values, [B, heads, T, head size], in tensors that are longer than T.

    Attention reads views of them, which give the same numbers as copies.

    Args:
        keys, values: [P, heads, T, head size] of each prompt.
        owners: [B] the prompt that each row starts with.
    """

    def __init__(self, keys: Tensor, values: Tensor, owners: Tensor) -> None:
        super().__init__()
        self.lazy_initialization(keys, values)
        self._hold(_longer(keys[owners]), _longer(values[owners]), keys.shape[-2])

    def update(
        self, key_states: Tensor, value_states: Tensor, *_args: Any, **_kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Adds the keys and values of new tokens; returns all that are there then."""
        new = key_states.shape[-2]
        start = self._length
        if start + new > self._all_keys.shape[-2]:
            keys, values = self._views()
            self._hold(_longer(keys, new), _longer(values, new), start)
        self._all_keys[:, :, start : start + new] = key_states
        self._all_values[:, :, start : start + new] = value_states
        self._hold(self._all_keys, self._all_values, start + new)
        return self._views()

    def batch_select_indices(self, indices: Tensor) -> None:
        """Only these rows."""
        self._hold(self._all_keys[indices], self._all_values[indices], self._length)

    def _hold(self, keys: Tensor, values: Tensor, length: int) -> None:
        self._all_keys, self._all_values, self._length = keys, values, length
        self.keys, self.values = self._views()

    def _views(self) -> tuple[Tensor, Tensor]:
        return self._all_keys[:, :, : self._length], self._all_values[:, :, : self._length]


def _longer(states: Tensor, at_least: int = 0) -> Tensor:
    """A copy with room behind it."""
    *outer, length, width = states.shape
    longer = states.new_empty(*outer, length + max(ROOM, at_least), width)
    longer[:, :, :length] = states
    return longer


def for_rows(cache: Any, owners: Tensor) -> None:
    """Turns the cache of prompts, in place, into that of rows, with room for what they will say.

    Args:
        cache: as the model returned it; layers that are not of plain full attention only get their rows.
        owners: [B] place of each row's prompt.
    """
    if type(cache) is not DynamicCache:
        cache.batch_select_indices(owners)
        return
    for place, layer in enumerate(cache.layers):
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if type(layer) is DynamicLayer and keys is not None and values is not None:
            cache.layers[place] = RoomyLayer(keys, values, owners)
        else:
            layer.batch_select_indices(owners)  # type: ignore[union-attr]
