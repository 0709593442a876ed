"""Rollbook's library: `open` opens a run to look at it, `load` reads its tables, and components are made from the
classes.

Everything else is imported from its module.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl

    from rollbook.components.advantages.base import AdvantageEstimator
    from rollbook.components.critics.base import Critic
    from rollbook.components.engines.base import RolloutEngine
    from rollbook.components.losses.base import Loss
    from rollbook.components.policies.base import BasePolicy
    from rollbook.components.rewards.base import Reward, RewardInput, RewardResult
    from rollbook.components.sources.base import Source
    from rollbook.project.run.run import open_run as open
    from rollbook.views.doctor.checks.base import Check

PUBLIC = {
    "open": "rollbook.project.run.run:open_run",
    "AdvantageEstimator": "rollbook.components.advantages.base:AdvantageEstimator",
    "BasePolicy": "rollbook.components.policies.base:BasePolicy",
    "Check": "rollbook.views.doctor.checks.base:Check",
    "Critic": "rollbook.components.critics.base:Critic",
    "Loss": "rollbook.components.losses.base:Loss",
    "Reward": "rollbook.components.rewards.base:Reward",
    "RewardInput": "rollbook.components.rewards.base:RewardInput",
    "RewardResult": "rollbook.components.rewards.base:RewardResult",
    "RolloutEngine": "rollbook.components.engines.base:RolloutEngine",
    "Source": "rollbook.components.sources.base:Source",
}
"""What is imported when it is asked for: name, module and name there."""
__all__ = [
    "AdvantageEstimator",
    "BasePolicy",
    "Check",
    "Critic",
    "Loss",
    "Reward",
    "RewardInput",
    "RewardResult",
    "RolloutEngine",
    "Source",
    "load",
    "open",
]

_root = Path(__file__).parents[2]
if Path(__file__).parents[1].name == "pipeline" and (_root / "stages" / "__init__.py").is_file():
    __path__.append(
        str(_root)
    )  # in a checkout, `rollbook.stages` is the folder `stages/` at its top


def load(
    kind: str, join: Sequence[str] = (), iterations: Iterable[str] | None = None
) -> pl.DataFrame:
    """All iterations of a table of the run in the current folder; see `rollbook.project.run.run.Run.scan`.

    Example:
        >>> rollbook.load("rollouts", join=("prompts", "scores", "advantages"))
    """
    from rollbook.project.run.run import Run

    return Run().load(kind, join, iterations)


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module 'rollbook' has no attribute {name!r}")
    module, _, attribute = PUBLIC[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC})
