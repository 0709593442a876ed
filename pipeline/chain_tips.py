"""Which chain of iterations a look at a run is about."""

from __future__ import annotations

from pipeline.artifacts import path_of
from pipeline.config import Params
from pipeline.errors import ConfigError, Problem, nearest
from pipeline.ids import BASE_KEY
from pipeline.plan_file import ITERATION_STAGES
from pipeline.run.curves import CURVES_FILE, read_curves


def tip_of(params: Params, key: str, command: str) -> str:
    """The iteration that the chain ends with.

    Args:
        params: of the project.
        key: as `--chain` has it. Empty: the last iteration of params.yaml that has begun; the last one where none has,
            and the base policy where there is none.
        command: that asks, for the error.

    Raises:
        ConfigError: if there is no such iteration.
    """
    every = list(params.every_iteration)
    if key and key not in (BASE_KEY, *every):
        what = f"there is no iteration {key!r}; {nearest(key, every)}"
        raise ConfigError([Problem("--chain", what)], command)
    return key or (_begun(every) or every or [BASE_KEY])[-1]


def has_begun(key: str) -> bool:
    """Whether anything of an iteration is on disk: metrics of a stage, or rollouts."""
    files = (
        *(path_of(f"metrics/{stage}", key) for stage in ITERATION_STAGES),
        path_of("rollouts", key),
    )
    return any(file.exists() for file in files)


def _begun(every: list[str]) -> list[str]:
    """Those that have begun; where nothing was pulled yet, those that curves.csv of git has numbers of."""
    if here := [key for key in every if has_begun(key)]:
        return here
    told = {row["iteration"] for row in read_curves(CURVES_FILE)} if CURVES_FILE.exists() else set()
    return [key for key in every if key in told]
