"""One iteration of a run: what was asked for, how it ran, and what it has stored."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rollbook.core.ids import BASE_KEY
from rollbook.project.plan_file import ITERATION_STAGES
from rollbook.project.run.store import Store
from rollbook.project.run.stored import StoredTable
from rollbook.tables.artifacts import path_of
from rollbook.tables.run_info import RunInfo

if TYPE_CHECKING:
    from rollbook.settings.recipe import Recipe

AS_RUN = {
    "prepare_prompts": "format",
    "generate_rollouts": "generate",
    "score_rollouts": "score_rollouts",
    "compute_advantages": "compute_advantages",
    "update_policy": "update",
}
"""Where run_info of each stage keeps the section of the recipe that it ran with."""


class Iteration:
    """One iteration; the base policy counts as one without a recipe.

    Attributes:
        run: that it is part of.
        key: such as `i0003`.
    """

    def __init__(self, run: Store, key: str) -> None:
        self.run, self.key = run, key

    @property
    def previous(self) -> str:
        """Key of the iteration whose policy it starts from; empty where it is not known."""
        return self.run.configured_as(self.key, "previous")

    @property
    def reference(self) -> str:
        """Key of the iteration that made its reference policy; empty where it is not known."""
        return self.run.configured_as(self.key, "reference")

    @property
    def configured_recipe_name(self) -> str:
        """Name of its recipe in params.yaml, or when it was sealed; empty where it is not known."""
        return self.run.configured_as(self.key, "recipe")

    @property
    def sealed_part(self) -> str:
        """The sealed part that it belongs to; empty if it is not sealed."""
        return self.run.sealed[self.key].part if self.key in self.run.sealed else ""

    @cached_property
    def has_begun(self) -> bool:
        """Whether anything of it is on disk: metrics of a stage, or rollouts."""
        stages = ITERATION_STAGES[-1:] if self.key == BASE_KEY else ITERATION_STAGES
        return self.run.has("rollouts", self.key) or any(
            self.run.has_metrics(stage, self.key) for stage in stages
        )

    @cached_property
    def is_finished(self) -> bool:
        """Whether the metrics of all its stages are on disk."""
        return all(self.run.has_metrics(stage, self.key) for stage in ITERATION_STAGES)

    # --- how it ran -------------------------------------------------------------------------------

    def info(self, stage: str) -> RunInfo | None:
        """run_info of one of its steps; None where it is not on disk."""
        return self.run.info(stage, self.key)

    def settings(self, stage: str) -> Mapping[str, Any]:
        """Resolved settings that one of its steps ran with; empty where they are not known."""
        info = self.info(stage)
        return info.settings if info else {}

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe that it ran with, by run_info; that of params.yaml where this is not on disk or no longer valid.

        Raises:
            ConfigError: if the iteration is sealed and this Rollbook cannot read its recipe any more.
        """
        from pydantic import ValidationError

        from rollbook.settings.recipe import Recipe

        sections: dict[str, Any] = {}
        for stage, name in AS_RUN.items():
            section = self.settings(stage).get(name)
            if section is None:
                return self.configured_recipe
            sections[stage] = section
        try:
            return Recipe.model_validate(sections)
        except ValidationError:
            return self.configured_recipe

    @property
    def configured_recipe(self) -> Recipe:
        """Its recipe as params.yaml has it, or as it was sealed."""
        return self.run.params.recipe_of(self.key)

    @cached_property
    def is_changed(self) -> bool:
        """Whether params.yaml has another recipe for it now than it ran with."""
        if self.key == BASE_KEY or self.sealed_part:
            return False
        return _dumped(self.recipe) != _dumped(self.configured_recipe)

    @cached_property
    def recipe_name(self) -> str:
        """What params.yaml calls the recipe that it ran with; its own name where no other is equal."""
        if not self.is_changed:
            return self.configured_recipe_name
        ran = _dumped(self.recipe)
        equal = (name for name, other in self.run.params.recipes.items() if _dumped(other) == ran)
        return next(equal, self.configured_recipe_name)

    # --- what it has stored -----------------------------------------------------------------------

    @cached_property
    def metrics(self) -> Mapping[str, float]:
        """Metrics of all its stages that are on disk; what is not finite is left out."""
        return {
            name: value
            for stage in ITERATION_STAGES
            for name, value in self.run.metrics(stage, self.key).items()
            if value is not None
        }

    def table(self, kind: str) -> StoredTable:
        """One of its tables.

        Raises:
            ArtifactError: if it is not on disk, damaged, or says that it is another one.
        """
        return self.run.table(kind, self.key)

    def find_table(self, kind: str) -> StoredTable | None:
        """One of its tables; None where it is not on disk."""
        return self.run.find_table(kind, self.key)

    def missing_tables(self, *kinds: str) -> list[str]:
        """Those of these tables that are not on disk, each with what brings it."""
        return [
            f"{path_of(kind, self.key)}: {self.run.fetch_hint(kind, self.key)}"
            for kind in kinds
            if not self.run.has(kind, self.key)
        ]

    @property
    def policy_digest(self) -> str:
        """Digest of the policy that it made; empty where it is not known."""
        return self.run.policy_digest(self.key)


def _dumped(recipe: Recipe) -> dict[str, Any]:
    """Its settings: components of the user's own are equal if these are."""
    return recipe.model_dump(mode="json", serialize_as_any=True)
