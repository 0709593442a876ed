"""The chain of iterations that a page is about, and the others beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pipeline.artifacts import path_of
from pipeline.chain_tips import has_begun, tip_of
from pipeline.config import Params
from pipeline.doctor.iteration import Reading
from pipeline.ids import BASE_KEY
from pipeline.report import curves_of
from pipeline.run.store import Store
from pipeline.showing.chain import Chain

COMMAND = "rollbook page"
Row = Mapping[str, Any]
"""One of `pipeline.report.curve_rows`."""


@dataclass(frozen=True)
class Branch:
    """A chain, as far as it shares no iteration with those before it.

    Attributes:
        name: the iteration that it ends with, and its recipes.
        end: that iteration.
        keys: its own iterations, oldest first.
        rows: of the curves, by step: its own, and those of the policy that it starts from.
    """

    name: str
    end: str
    keys: Sequence[str]
    rows: Sequence[Row]


@dataclass(frozen=True)
class Run:
    """One chain of policies, as far as it is on disk.

    Attributes:
        params: of the project.
        key: the iteration that the chain ends with; `i0000` where there is no other.
        every_row: of the curves, by step, those of other chains too; none if nothing is evaluated.
    """

    params: Params
    key: str
    every_row: Sequence[Row]

    @cached_property
    def chain(self) -> list[str]:
        """Its iterations without the base, oldest first."""
        return self.params.chain(self.key)

    @cached_property
    def rows(self) -> list[Row]:
        """Of the curves, those of the chain."""
        return self._rows_of({BASE_KEY, *self.chain})

    @cached_property
    def finished(self) -> list[str]:
        """Those of its iterations that have all their numbers."""
        known = {row["iteration"] for row in self.rows}
        return [key for key in self.chain if key in known]

    @cached_property
    def begun(self) -> list[str]:
        """Those of them that are finished, or of which something is on disk or was, as the lock files say."""
        return [
            key
            for key in self.chain
            if key in self.finished
            or has_begun(key)
            or self.stored.md5(path_of("rollouts", key).as_posix())
        ]

    @cached_property
    def stored(self) -> Chain:
        """What run_info and the lock files say."""
        return Chain()

    @cached_property
    def sets(self) -> list[str]:
        """Evaluation sets, in the order of the curves."""
        return list(dict.fromkeys(row["set"] for row in self.rows if row["set"]))

    @cached_property
    def readings(self) -> Mapping[str, Reading]:
        """What every iteration of params.yaml has stored, sealed ones too."""
        return {key: Reading(key, self.params) for key in self.params.every_iteration}

    def recipe(self, key: str) -> str:
        """Name of the recipe that made a policy."""
        return "base" if key == BASE_KEY else self.readings[key].recipe_name

    @cached_property
    def changed(self) -> list[str]:
        """Iterations of the chain that params.yaml has another recipe for now than they ran with."""
        return [key for key in self.begun if self.readings[key].is_changed]

    @cached_property
    def samples(self) -> list[int]:
        """Answers to each prompt that its evaluations have: one number, unless they differ; curves of older code
        do not say, and params.yaml is believed."""
        known = dict.fromkeys(row["samples"] for row in self.rows if row["samples"] is not None)
        return [int(each) for each in known] or [self.params.evaluate_policy.samples]

    def others(self) -> list[str]:
        """Ends of the chains that are not this one."""
        every = self.params.every_iteration
        followed = {item.previous for item in every.values()}
        return [key for key in every if key not in followed and key != self.key]

    @cached_property
    def branches(self) -> list[Branch]:
        """This chain, then of every other one what is not of those before it, if it has a number."""
        taken, found = {BASE_KEY}, []
        for end in (self.key, *self.others()):
            own = [key for key in self.params.chain(end) if key not in taken]
            taken.update(own)
            start = self.params.every_iteration[own[0]].previous if own else BASE_KEY
            if end == self.key or self._rows_of(set(own)):
                recipes = " → ".join(dict.fromkeys(map(self.recipe, own)))
                name = f"{end}, {recipes}" if recipes else end
                found.append(Branch(name, end, own, self._rows_of({start, *own})))
        return found

    def command(self, end: str = "", more: str = "") -> str:
        """What makes this page, or that of another chain.

        Args:
            end: the iteration that the chain ends with; this one's unless told.
            more: options.
        """
        chain = f"--chain {end or self.key}" if end or self.others() else ""
        return " ".join(filter(None, (COMMAND, chain, more)))

    def _rows_of(self, keys: set[str]) -> list[Row]:
        return [row for row in self.every_row if row["iteration"] in keys]


def run_of(params: Params, key: str = "") -> Run:
    """The chain that ends with an iteration; without one, the chain of the last iteration that has begun.

    Raises:
        ConfigError: if there is no such iteration.
        ArtifactError: if a file is damaged.
    """
    rows = sorted(curves_of(Store()), key=lambda row: int(row["step"]))
    return Run(params, tip_of(params, key, COMMAND), rows)
