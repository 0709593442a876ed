"""The chain of iterations that a page is about, and the others beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rollbook.core.ids import BASE_KEY
from rollbook.project.report import curves_of
from rollbook.project.run.chain import Chain
from rollbook.project.run.iteration import Iteration
from rollbook.project.run.run import Run

COMMAND = "rollbook page"
Row = Mapping[str, Any]
"""One of `rollbook.project.report.curve_rows`."""


@dataclass(frozen=True)
class Branch:
    """A chain, as far as it shares no iteration with those before it.

    Attributes:
        name: the iteration that it ends with, and its recipes.
        chain: all of it.
        keys: its own iterations, oldest first.
        rows: of the curves, by step: its own, and those of the policy that it starts from.
    """

    name: str
    chain: Chain
    keys: Sequence[str]
    rows: Sequence[Row]


@dataclass(frozen=True)
class ShownChain:
    """One chain of policies with its curves, as far as they are known.

    Attributes:
        run: that it is part of.
        chain: from the base policy to the iteration that it ends with.
        every_row: of the curves, by step, those of other chains too; none if nothing is evaluated.
    """

    run: Run
    chain: Chain
    every_row: Sequence[Row]

    @property
    def key(self) -> str:
        """The iteration that the chain ends with; `i0000` where there is no other."""
        return self.chain.tip

    @property
    def keys(self) -> Sequence[str]:
        """Its iterations without the base, oldest first."""
        return self.chain.keys

    @cached_property
    def rows(self) -> list[Row]:
        """Of the curves, those of the chain."""
        return self._rows_of({BASE_KEY, *self.keys})

    @cached_property
    def finished(self) -> list[str]:
        """Those of its iterations that have all their numbers."""
        known = {row["iteration"] for row in self.rows}
        return [key for key in self.keys if key in known]

    @cached_property
    def begun(self) -> list[Iteration]:
        """Those of them that are finished, or of which something is on disk or was, as the lock files say."""
        return [
            item
            for item in map(self.every.__getitem__, self.keys)
            if item.key in self.finished or item.has_begun or self.run.md5("rollouts", item.key)
        ]

    @cached_property
    def sets(self) -> list[str]:
        """Evaluation sets, in the order of the curves."""
        return list(dict.fromkeys(row["set"] for row in self.rows if row["set"]))

    @cached_property
    def every(self) -> Mapping[str, Iteration]:
        """Every iteration of the run by its key, sealed ones too."""
        return {item.key: item for item in self.run.iterations}

    def recipe(self, key: str) -> str:
        """Name of the recipe that made a policy."""
        return "base" if key == BASE_KEY else self.every[key].recipe_name

    @cached_property
    def changed(self) -> list[str]:
        """Keys of those of its begun iterations that params.yaml has another recipe for now than they ran with."""
        return [item.key for item in self.begun if item.is_changed]

    @cached_property
    def samples(self) -> list[int]:
        """Answers to each prompt that its evaluations have: one number, unless they differ; curves of older code
        do not say, and params.yaml is believed."""
        known = dict.fromkeys(row["samples"] for row in self.rows if row["samples"] is not None)
        return [int(each) for each in known] or [self.run.params.evaluate_policy.samples]

    @cached_property
    def others(self) -> list[Chain]:
        """The chains of the run that are not this one."""
        return [chain for chain in self.run.chains if chain.tip != self.key]

    @cached_property
    def branches(self) -> list[Branch]:
        """This chain, then of every other one what is not of those before it, if it has a number."""
        taken, found = {BASE_KEY}, []
        for chain in (self.chain, *self.others):
            own = [key for key in chain.keys if key not in taken]
            taken.update(own)
            start = self.every[own[0]].previous if own else BASE_KEY
            if chain is self.chain or self._rows_of(set(own)):
                recipes = " → ".join(dict.fromkeys(map(self.recipe, own)))
                name = f"{chain.tip}, {recipes}" if recipes else chain.tip
                found.append(Branch(name, chain, own, self._rows_of({start, *own})))
        return found

    def command(self, end: str = "", more: str = "") -> str:
        """What makes this page, or that of another chain.

        Args:
            end: the iteration that the chain ends with; this one's unless told.
            more: options.
        """
        chain = f"--chain {end or self.key}" if end or self.others else ""
        return " ".join(filter(None, (COMMAND, chain, more)))

    def _rows_of(self, keys: set[str]) -> list[Row]:
        return [row for row in self.every_row if row["iteration"] in keys]


def shown_chain(run: Run, key: str = "") -> ShownChain:
    """The chain that ends with an iteration; without one, the chain of the last iteration that has begun.

    Raises:
        ConfigError: if there is no such iteration.
        ArtifactError: if a file is damaged.
    """
    rows = sorted(curves_of(run), key=lambda row: int(row["step"]))
    return ShownChain(run, run.chain(key, COMMAND), rows)
