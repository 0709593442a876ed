"""What one iteration has stored: its recipe as it ran, its metrics, its tables."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from pipeline.artifacts import path_of, read_metrics, read_run_info
from pipeline.config import Params
from pipeline.doctor.rollouts import Rollouts, Tables
from pipeline.plan_file import ITERATION_STAGES
from pipeline.recipe import Recipe
from pipeline.scoring.totals import FloatArray, numbers_in
from pipeline.showing.tables import Stored, stored
from pipeline.visible import listed

AS_RUN = {
    "prepare_prompts": "format",
    "generate_rollouts": "generate",
    "score_rollouts": "score_rollouts",
    "compute_advantages": "compute_advantages",
    "update_policy": "update",
}
"""Where run_info of each stage keeps the section of the recipe that it ran with."""


class Reading:
    """One iteration.

    Attributes:
        key: of the iteration.
        keys: of the iterations that its rollouts are looked at together with, itself the last of them.
        previous: the iteration that made the policy it starts from.
        reference: the iteration that made its reference policy.
    """

    def __init__(self, key: str, params: Params, keys: Sequence[str] = ()) -> None:
        self.key = key
        self.keys = tuple(keys) or (key,)
        self._params = params
        item = params.every_iteration[key]
        self._named, self.previous, self.reference = item.recipe, item.previous, item.reference

    @property
    def name(self) -> str:
        """Its key, or the first and the last of its keys."""
        return self.key if len(self.keys) == 1 else f"{self.keys[0]}–{self.key}"

    @cached_property
    def recipe(self) -> Recipe:
        """As the iteration ran, by its run_info; as params.yaml has it where that is not on disk or no longer valid.

        Raises:
            ConfigError: if the iteration is sealed and this Rollbook cannot read its recipe any more.
        """
        sections: dict[str, Any] = {}
        for stage, name in AS_RUN.items():
            path = path_of(f"run_info/{stage}", self.key)
            section = read_run_info(path).get("settings", {}).get(name) if path.exists() else None
            if section is None:
                return self._params.recipe_of(self.key)
            sections[stage] = section
        try:
            return Recipe.model_validate(sections)
        except ValidationError:
            return self._params.recipe_of(self.key)

    @cached_property
    def is_changed(self) -> bool:
        """Whether params.yaml has another recipe for it now than it ran with."""
        if self.key in self._params.sealed:
            return False
        return _said(self.recipe) != _said(self._params.recipe_of(self.key))

    @cached_property
    def recipe_name(self) -> str:
        """What params.yaml calls the recipe that it ran with; its own name where no other is alike."""
        if not self.is_changed:
            return self._named
        ran = _said(self.recipe)
        alike = (name for name, recipe in self._params.recipes.items() if _said(recipe) == ran)
        return next(alike, self._named)

    @cached_property
    def metrics(self) -> dict[str, float]:
        """Of all its stages that are finished; numbers that are null are left out."""
        found: dict[str, float] = {}
        for stage in ITERATION_STAGES:
            found |= numbers_of(stage, self.key)
        return found

    @cached_property
    def rollouts(self) -> Rollouts | None:
        """None until it is scored, where its tables are not on disk, of two runs, or without a sampled rollout."""
        parts = []
        for key in self.keys:
            rollouts, scores = stored("rollouts", key), stored("scores", key)
            if rollouts is None or scores is None or not is_made_of(scores, rollouts):
                return None
            if not has_sampled(rollouts):
                return None
            advantages, prompts = stored("advantages", key), stored("prompts", key)
            if advantages is not None and not is_made_of(advantages, scores):
                advantages = None
            parts.append(Tables(rollouts, scores, advantages, prompts))
        return Rollouts(parts)

    @cached_property
    def steps(self) -> dict[str, FloatArray]:
        """Columns of its optimizer steps; empty where they are not on disk."""
        table = stored("optimizer_steps", self.key)
        if table is None:
            return {}
        names = [name for name in table.names if name != "iteration"]
        return {name: numbers_in(table.column(name)) for name in names}

    @cached_property
    def evaluation(self) -> pa.Table | None:
        """Set, prompt, reward, greedy of its evaluation; None where it is not on disk or not evaluated."""
        return evaluation_of(self.key)


def recipes_changed(keys: Collection[str]) -> str:
    """What to say of iterations that params.yaml has another recipe for now than they ran with."""
    return (
        f"params.yaml has another recipe now than {listed(keys)} ran with; "
        "`rollbook check` says what would run again"
    )


def _said(recipe: Recipe) -> dict[str, Any]:
    """Its settings: components of the user's own are equal if these are."""
    return recipe.model_dump(mode="json", serialize_as_any=True)


def numbers_of(stage: str, key: str) -> dict[str, float]:
    """Metrics of a step, those that are null left out; empty where they are not on disk."""
    path = path_of(f"metrics/{stage}", key)
    if not path.exists():
        return {}
    return {name: float(value) for name, value in read_metrics(path).items() if value is not None}


def has_sampled(rollouts: Stored) -> bool:
    """Whether a table of rollouts has any but greedy ones."""
    return not pc.all(rollouts.column("greedy"), min_count=0).as_py()


def is_made_of(table: Stored, source: Stored) -> bool:
    """Whether a table was made from this one, and not from one that lay there before; a table that names none is."""
    return table.facts.is_made_of(source.facts)


def evaluation_of(key: str) -> pa.Table | None:
    """Set, prompt, reward and greedy of an evaluation; None where it is not on disk or empty."""
    table = stored("evaluations", key)
    if table is None or not table.rows:
        return None
    return table.all(["set", "prompt_id", "reward", "greedy"])
