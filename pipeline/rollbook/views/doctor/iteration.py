"""An iteration of a run as checks see it: its sampled rollouts, optimizer steps and evaluation as columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from rollbook.core.text import listed
from rollbook.project.run.iteration import Iteration
from rollbook.project.run.store import Store
from rollbook.project.run.stored import StoredTable
from rollbook.rl.scoring.totals import FloatArray
from rollbook.tables.columns import numbers_in
from rollbook.views.doctor.rollouts import Rollouts, Tables


class Reading(Iteration):
    """One iteration, or the last of several whose rollouts are counted together.

    Attributes:
        keys: of the iterations that its rollouts are counted together with, itself the last of them.
    """

    def __init__(self, run: Store, key: str, keys: Sequence[str] = ()) -> None:
        super().__init__(run, key)
        self.keys = tuple(keys) or (key,)

    @property
    def name(self) -> str:
        """Its key, or the first and the last of its keys."""
        return self.key if len(self.keys) == 1 else f"{self.keys[0]}–{self.key}"

    @cached_property
    def rollouts(self) -> Rollouts | None:
        """None until it is scored, where its tables are not on disk, of two runs, or without a sampled rollout."""
        parts = []
        for key in self.keys:
            rollouts, scores, advantages, prompts = (
                self.run.find_table(kind, key)
                for kind in ("rollouts", "scores", "advantages", "prompts")
            )
            if not (rollouts and scores and scores.facts.is_made_of(rollouts.facts)):
                return None
            if not has_sampled(rollouts):
                return None
            if advantages and not advantages.facts.is_made_of(scores.facts):
                advantages = None
            parts.append(Tables(rollouts, scores, advantages, prompts))
        return Rollouts(parts)

    @cached_property
    def steps(self) -> dict[str, FloatArray]:
        """Columns of its optimizer steps; empty where they are not on disk."""
        table = self.find_table("optimizer_steps")
        if table is None:
            return {}
        names = [name for name in table.names if name != "iteration"]
        return {name: numbers_in(table.column(name)) for name in names}

    @cached_property
    def evaluation(self) -> pa.Table | None:
        """Set, prompt, reward and greedy of its evaluation; None where it is not on disk or empty."""
        table = self.find_table("evaluations")
        if table is None or not table.rows:
            return None
        return table.all(["set", "prompt_id", "reward", "greedy"])


def recipes_changed(keys: Collection[str]) -> str:
    """What to say of iterations that params.yaml has another recipe for now than they ran with."""
    return (
        f"params.yaml has another recipe now than {listed(keys)} ran with; "
        "`rollbook check` says what would run again"
    )


def has_sampled(rollouts: StoredTable) -> bool:
    """Whether a table of rollouts has any but greedy ones."""
    return not pc.all(rollouts.column("greedy"), min_count=0).as_py()
