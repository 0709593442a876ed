"""The one read model of a run: everything that looks at a run asks here, and nothing else opens its files.

    run = rollbook.open(".")
    run.chain().keys                          # iterations that follow each other from the base policy
    run.iteration("i0003").metrics["reward"]
    run.info("update_policy", "i0003").environment.packages
    run.table("rollouts", "i0003").all(["rollout_id", "text"])
    run.load("rollouts", join=("scores",))    # all iterations, as a polars data frame
    run.currency.states                       # is each step current, and if not, why

Everything is read when it is first asked for, and once. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from rollbook.core.errors import ConfigError, Problem, RollbookError, nearest
from rollbook.core.ids import BASE_KEY, PARAMS_FILE
from rollbook.project.run.chain import Chain
from rollbook.project.run.curves import CURVES_FILE, read_curves
from rollbook.project.run.iteration import Iteration
from rollbook.project.run.store import Store
from rollbook.tables.artifacts import ROOT

if TYPE_CHECKING:
    import polars as pl

    from rollbook.project.run.currency import Currency


class Run(Store):
    """A run on disk: a project's folder, or the project at another revision. See `Store` for its files."""

    def iteration(self, key: str) -> Iteration:
        """One iteration, or the base policy; it need not have begun, nor stand in params.yaml."""
        return Iteration(self, key)

    @property
    def iterations(self) -> list[Iteration]:
        """Sealed iterations and those of params.yaml."""
        return [self.iteration(key) for key in self.keys]

    def chain(self, key: str = "", command: str = "rollbook") -> Chain:
        """The iterations from the first after the base policy up to one.

        Args:
            key: of the last; default the last one of params.yaml that has begun, else the last one.
            command: that asks, for the error.

        Raises:
            ConfigError: if there is no such iteration.
        """
        every = list(self.params.every_iteration)
        if key and key not in (BASE_KEY, *every):
            what = f"there is no iteration {key!r}; {nearest(key, every)}"
            raise ConfigError([Problem("--chain", what)], command)
        return Chain(self, key or (self._begun(every) or every or [BASE_KEY])[-1])

    @property
    def chains(self) -> list[Chain]:
        """One per iteration that no other follows, in the order of params.yaml, sealed ones first."""
        every = self.params.every_iteration
        followed = {item.previous for item in every.values()}
        return [Chain(self, key) for key in every if key not in followed]

    def _begun(self, every: Sequence[str]) -> list[str]:
        """Those that have begun; where nothing was pulled yet, those that curves.csv of git has numbers of."""
        if here := [key for key in every if self.iteration(key).has_begun]:
            return here
        file = self.root / CURVES_FILE
        known = {row["iteration"] for row in read_curves(file)} if file.exists() else set()
        return [key for key in every if key in known]

    def load(
        self, kind: str, join: Sequence[str] = (), iterations: Iterable[str] | None = None
    ) -> pl.DataFrame:
        """All iterations of a table as one polars data frame; see `scan`."""
        return self.scan(kind, join, iterations).collect()

    def scan(
        self, kind: str, join: Sequence[str] = (), iterations: Iterable[str] | None = None
    ) -> pl.LazyFrame:
        """All iterations of a table as one lazy polars frame, other tables joined to it.

        Args:
            kind: a table kind, such as `rollouts` or `rescores/<name>`.
            join: further kinds, joined by `rollout_id`, or by `iteration` and `prompt_id` where one side has prompts.
                Columns that both sides have are taken from the left.
            iterations: keys wanted; default those of params.yaml and sealed ones that are on disk.

        Raises:
            ArtifactError: for an unknown kind, a missing or foreign table, or tables without rows in common.
            ConfigError: if no keys are named, and params.yaml is no YAML.
        """
        from rollbook.project.run.dataset import scan  # polars takes a while

        return scan(self, kind, join, iterations)

    @cached_property
    def currency(self) -> Currency:
        """Whether each step is current, and why not.

        Raises:
            RollbookError: if it is not the run of the current folder, where code, files and processes are looked up.
            ConfigError: if settings cannot be planned, or a lock file cannot be read.
        """
        if not self.is_here:
            raise RollbookError(
                f"{self.root if self.is_workspace else self.shown}: whether its steps are current is known in its own "
                "folder only, from the code and files that lie there",
                'open the run of the current folder: rollbook.open(".")',
            )
        from rollbook.project.run.currency import currency_of  # plans import every stage's settings

        return currency_of(self)


def open_run(path: str | Path = ".") -> Run:
    """The run in a project's folder.

    Args:
        path: the folder that has params.yaml. Where it is not the current folder, `currency` is an error, and
            so are `params` that name components by files of the project, and what lies only in DVC's cache.

    Raises:
        ConfigError: if there is no project.
    """
    root = Path(path)
    if not ((root / PARAMS_FILE).exists() or (root / ROOT).is_dir()):
        raise ConfigError(
            [Problem("", f"neither {PARAMS_FILE} nor {ROOT}/ in {root.resolve()}")], str(root)
        )
    return Run(root)
