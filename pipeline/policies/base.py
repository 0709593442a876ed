"""The interface of a base policy: how iteration i0000 comes to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pipeline.component import Component

if TYPE_CHECKING:
    from pipeline.config import Runtime


@dataclass(frozen=True)
class WarmStartExample:
    """A training prompt that a base policy may warm up on."""

    messages: Sequence[dict[str, str]]
    reference_answer: str | None


class BasePolicy(Component):
    """Writes the base policy as a Hugging Face folder."""

    kind: ClassVar[str] = "policies"

    def create(self, folder: Path, examples: Sequence[WarmStartExample], seed: int, runtime: Runtime) -> dict[str, float]:
        """Writes config, safetensors weights, tokenizer, chat template and generation config into `folder`.

        Args:
            folder: exists and is empty.
            examples: the training prompts; only policies that need a warm start look at them.
            seed: decides initial weights and warm start.
            runtime: device and threads.

        Returns:
            Deterministic facts for metrics, such as the number of parameters.

        Raises:
            PolicyError: if the model cannot be had.
        """
        raise NotImplementedError
