"""Procedural tasks with verifiers: about a hundred data sets of the package reasoning-gym (arXiv 2505.24760).

{name: reasoning_gym, task: chain_sum, size: 1000, config: {min_terms: 2, max_terms: 4}}
{name: reasoning_gym, tasks: {leg_counting: {}, simple_equations: {}}, size: 500}      # 500 of each

Goes with the reward `reasoning_gym`, which asks the task's own scorer. Every question belongs to one side, training or
evaluation, decided by a hash of `data.split_seed` and its text, so the sides never overlap.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PositiveInt, model_validator

from rollbook.components.reasoning_tasks import INSTALL
from rollbook.components.sources import reasoning_questions
from rollbook.components.sources.base import Role, Source
from rollbook.core.errors import DataError

ROOT = Path(__file__).parents[3]
OURS = ("seed", "size")
"""Settings of every task that this source decides."""
SHOWN_CHARACTERS = 300


class ReasoningGym(Source):
    """Questions of one task, or of several, one task after the other."""

    task: str | None = None
    """Name of a data set of reasoning-gym."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Its settings. Default: those of reasoning-gym."""
    tasks: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Several tasks with the settings of each, instead of `task` and `config`."""
    size: PositiveInt = 500
    """Questions of each task on the side that is asked for."""
    seed: int = 0
    """Other questions from the same `data.split_seed`."""
    evaluation_share: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Share of the questions kept for evaluation. Give both sides the same."""

    @model_validator(mode="after")
    def _names_tasks_once(self) -> ReasoningGym:
        if (self.task is None) == (not self.tasks):
            raise ValueError("give `task`, or `tasks` with several, one of the two")
        if self.tasks and self.config:
            raise ValueError("`config` belongs to `task`; `tasks` holds the settings of each task")
        for name, settings in self._wanted.items():
            if taken := [each for each in OURS if each in settings]:
                raise ValueError(
                    f"{name}: `{taken[0]}` is decided by the source; set its own `{taken[0]}`"
                )
        return self

    @property
    def _wanted(self) -> dict[str, dict[str, Any]]:
        return self.tasks or {str(self.task): self.config}

    def records(self, role: Role, split_seed: int) -> Iterator[dict[str, Any]]:
        common = {
            "role": role,
            "split_seed": split_seed,
            "seed": self.seed,
            "size": self.size,
            "evaluation_share": self.evaluation_share,
        }
        wanted = self._wanted.items()
        yield from _made([{"task": task, "config": config, **common} for task, config in wanted])


def _made(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records that the program makes.

    Raises:
        DataError: if it cannot, with its reason.
    """
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-P", "-m", reasoning_questions.__name__],
        input=json.dumps(requests).encode(),
        capture_output=True,
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0"},
        check=False,
    )
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        tasks = ", ".join(request["task"] for request in requests)
        raise DataError(f"reasoning_gym: {tasks} failed: {reason[:SHOWN_CHARACTERS]}")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    if lines and "failure" in lines[-1]:
        hint = INSTALL if INSTALL in lines[-1]["failure"] else ""
        raise DataError(f"reasoning_gym: {lines[-1]['failure'].removesuffix(f': {INSTALL}')}", hint)
    return lines
