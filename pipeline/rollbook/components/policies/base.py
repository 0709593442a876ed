"""The interface of a base policy: how iteration i0000 comes to be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rollbook.core.component import Component

if TYPE_CHECKING:
    from rollbook.core.runtime import Runtime


@dataclass(frozen=True)
class WarmStartExample:
    """A training prompt that a base policy may warm up on."""

    messages: Sequence[dict[str, str]]
    reference_answer: str | None


@dataclass(frozen=True)
class CreatedPolicy:
    """A base policy, made and not yet written.

    Attributes:
        write: fills a folder with config, safetensors weights, tokenizer, chat template and generation config.
        facts: deterministic numbers for metrics, `parameters` among them.
    """

    write: Callable[[Path], None]
    facts: Mapping[str, float]


class BasePolicy(Component):
    """Makes the base policy as a Hugging Face folder."""

    kind: ClassVar[str] = "policies"

    def create(
        self, examples: Sequence[WarmStartExample], seed: int, runtime: Runtime
    ) -> CreatedPolicy:
        """Makes the policy.

        Args:
            examples: the training prompts; only policies that need a warm start look at them.
            seed: decides initial weights and warm start.
            runtime: device and threads.

        Raises:
            PolicyError: if the model cannot be had.
        """
        raise NotImplementedError

    def parameter_count(self) -> int | None:
        """Number of parameters, if it can be told without making the policy."""
        return None
