"""Rollbook's library. `pipeline.load` reads the tables of a run; everything else is imported from its module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.dataset import load

__all__ = ["load"]


def __getattr__(name: str) -> Any:
    if name == "load":
        from pipeline.dataset import load

        return load
    raise AttributeError(f"module 'pipeline' has no attribute {name!r}")
