"""Settings of a LoRA adapter."""

from __future__ import annotations

import importlib.util
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from rollbook.core.component import Model


class Lora(Model):
    """An adapter that is trained instead of the policy's own weights (LoRA, arXiv 2106.09685).

    There is no dropout in it: the update computes the policy that generated, or ratios would not start at 1.
    """

    rank: PositiveInt = 16
    alpha: PositiveFloat = 32
    """What the adapter adds is multiplied by alpha / rank."""
    target_modules: Literal["all-linear"] | Annotated[list[str], Field(min_length=1)] = "all-linear"
    """Names of the linear layers that get one, such as `[q_proj, v_proj]`; all but the output head."""

    def cautions(self) -> list[str]:
        if importlib.util.find_spec("peft") is None:
            return ["update_policy.lora needs the package peft: pip install 'rollbook[lora]'"]
        return []
