"""The chain of iterations that a page is about."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pipeline.artifacts import path_of
from pipeline.config import BASE_KEY, Params
from pipeline.errors import ConfigError, Problem, nearest
from pipeline.report import CURVES_FILE, Report, curve_rows, read_curves, read_iterations
from pipeline.showing.chain import Chain

COMMAND = "rollbook page"
Row = Mapping[str, Any]
"""One of `pipeline.report.curve_rows`."""


@dataclass(frozen=True)
class Run:
    """One chain of policies, as far as it is on disk.

    Attributes:
        params: of the project.
        key: the iteration that the chain ends with; `i0000` where there is no other.
        rows: of the curves, those of the chain, by step; none if nothing is evaluated.
    """

    params: Params
    key: str
    rows: Sequence[Row]

    @cached_property
    def chain(self) -> list[str]:
        """Its iterations without the base, oldest first."""
        return self.params.chain(self.key)

    @cached_property
    def finished(self) -> list[str]:
        """Those of them that have all their numbers."""
        known = {row["iteration"] for row in self.rows}
        return [key for key in self.chain if key in known]

    @cached_property
    def begun(self) -> list[str]:
        """Those of them that have made rollouts which are on disk, or are finished."""
        return [
            key for key in self.chain if key in self.finished or path_of("rollouts", key).exists()
        ]

    @cached_property
    def stored(self) -> Chain:
        """What run_info and the lock files say."""
        return Chain()

    @cached_property
    def sets(self) -> list[str]:
        """Evaluation sets, in the order of the curves."""
        return list(dict.fromkeys(row["set"] for row in self.rows if row["set"]))

    def recipe(self, key: str) -> str:
        """Name of an iteration's recipe."""
        return self.params.every_iteration[key].recipe

    def stretches(self) -> list[list[str]]:
        """The chain in pieces: neighbours under one recipe."""
        return [list(keys) for _, keys in itertools.groupby(self.chain, key=self.recipe)]

    def others(self) -> list[str]:
        """Ends of the chains that are not this one."""
        every = self.params.every_iteration
        followed = {item.previous for item in every.values()}
        return [key for key in every if key not in followed and key != self.key]


def run_of(params: Params, key: str = "") -> Run:
    """The chain that ends with an iteration; without one, the chain of the last iteration that has begun.

    Raises:
        ConfigError: if there is no such iteration.
        ArtifactError: if a file is damaged.
    """
    every = params.every_iteration
    if key and key not in every:
        what = f"there is no iteration {key!r}; {nearest(key, every)}"
        raise ConfigError([Problem("--chain", what)], COMMAND)
    rows = _curves(params)
    known = {row["iteration"] for row in rows}
    begun = [each for each in every if each in known or path_of("rollouts", each).exists()]
    key = key or (begun or list(every) or [BASE_KEY])[-1]
    chain = {BASE_KEY, *params.chain(key)}
    return Run(params, key, [row for row in rows if row["iteration"] in chain])


def _curves(params: Params) -> list[dict[str, Any]]:
    """From the metrics on disk; where they were not pulled, as git has them in curves.csv."""
    if path_of("metrics/evaluate_policy", BASE_KEY).exists():
        return curve_rows(Report(read_iterations(params)))
    return read_curves(CURVES_FILE) if CURVES_FILE.exists() else []
