"""Policies opened one after the other to be read; an adapter and its base, or two adapters, share one copy of the base.

An adapter is not merged here: its log-probs are then, bit for bit, those that training sees before its first step.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rollbook.components.policies.adapters import (
    attach_stored,
    base_folder,
    has_adapter,
    is_adapter,
    load_weights,
    switch,
)
from rollbook.components.policies.loading import load_model

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


class FrozenPolicies:
    """Holds one model at a time, in float32 and evaluation mode.

    Args:
        device: where the weights go.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._base: Path | None = None
        self._model: PreTrainedModel | None = None

    def open(self, folder: Path) -> PreTrainedModel:
        """The policy of a folder; the model given out before is no longer that of its folder.

        Raises:
            PolicyError: if it cannot be loaded.
        """
        adapted = is_adapter(folder)
        model = self._loaded(base_folder(folder) if adapted else folder)
        if adapted and has_adapter(model):
            load_weights(model, folder)
        elif adapted:
            attach_stored(model, folder)
        switch(model, adapted)
        return model

    def _loaded(self, base: Path) -> PreTrainedModel:
        if self._model is None or self._base != base:
            self._model = None  # two large models may not fit
            self._model, self._base = load_model(base, self._device), base
        return self._model
