"""Whether stored tensors are those of a model: names and shapes, and the first difference in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def misfit(stored: Mapping[str, Tensor], model: Mapping[str, Tensor]) -> str:
    """The first tensor, by name, that differs in shape or that only one side has; empty if all are alike.

    Returns:
        Such as `head.weight is (1, 64), the policy has (1, 32)`.
    """
    found, expected = (
        {name: tuple(each.shape) for name, each in one.items()} for one in (stored, model)
    )
    for name in sorted({*found, *expected}):
        if found.get(name) != expected.get(name):
            return f"{name} is {found.get(name, 'missing')}, the policy has {expected.get(name, 'none')}"
    return ""
