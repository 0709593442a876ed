"""Rewards of the command line, asked about one stored iteration after the other."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pydantic import ValidationError

from rollbook.cli.rescoring import COMMAND
from rollbook.cli.specs import reward_of
from rollbook.core.component import Model, problems_of
from rollbook.core.errors import ConfigError, Problem
from rollbook.core.progress import Progress
from rollbook.project.run.store import Store
from rollbook.rl.rescoring import TABLES, Numbers, rescored
from rollbook.settings.recipe import Recipe
from rollbook.settings.recipe_sections import ScoreRollouts
from rollbook.tables.artifacts import write_rows
from rollbook.tables.schemas.rescores import SCHEMA

if TYPE_CHECKING:
    from rollbook.components.rewards.base import Reward
    from rollbook.rl.scoring.scorer import Scorer
    from rollbook.views.mlflow.rescore_runs import Answers


class Asked:
    """What is asked: rewards, and the estimator of the iteration or of a recipe.

    A row that cannot be scored carries its error and stops nothing.
    """

    def __init__(self, run: Store, rewards: Sequence[str], recipe: str | None) -> None:
        """Raises ConfigError for rewards that cannot be built or do not go together.

        Args:
            run: that is asked about.
            rewards: as they were written; none: those of the recipe.
            recipe: name of a recipe, or None.
        """
        self.run = run
        self.recipe = recipe
        self.name = " ".join([*rewards, *([f"--recipe {recipe}"] if recipe else [])])
        self.score = _score_rollouts(
            _built(rewards) or run.params.recipes[str(recipe)].score_rollouts.rewards
        )
        self.inputs: dict[str, dict[str, str]] = {}

    def table(self, key: str, scorer: Scorer) -> pa.Table:
        """The rescores table of an iteration."""
        tables = {}
        for kind in TABLES:
            stored = self.run.table(kind, key)
            tables[kind] = stored.checked()
            self.inputs.setdefault(key, {})[kind] = stored.facts.content_hash
        with Progress(f"rescore {key}", tables["rollouts"].num_rows, "rollouts") as bar:
            return rescored(
                tables, scorer, self.score, self._recipe(key).compute_advantages, bar.update
            )

    def answers(self, summaries: Mapping[str, Numbers]) -> list[Answers]:
        """What MLflow is to show; nothing if there are no numbers.

        Args:
            summaries: of `rollbook.rl.rescoring.summary`, by iteration.
        """
        from rollbook.views.mlflow.rescore_runs import Answers

        if not summaries:
            return []
        numbers = {
            key: {name: value if math.isfinite(value) else None for name, value in found.items()}
            for key, found in summaries.items()
        }
        now = round(1000 * time.time())
        return [Answers(self.name, self._settings(), numbers, self.inputs, now)]

    def _settings(self) -> dict[str, Any]:
        """Rewards and estimator; the iterations' own estimator may be another in each, that of the last is named."""
        parts: dict[str, Model] = {
            "score_rollouts": self.score,
            "compute_advantages": self._recipe(list(self.inputs)[-1]).compute_advantages,
        }
        return {
            name: part.model_dump(mode="json", serialize_as_any=True)
            for name, part in parts.items()
        }

    def _recipe(self, key: str) -> Recipe:
        params = self.run.params
        return params.recipes[self.recipe] if self.recipe else params.recipe_of(key)


def make_folder(out: Path) -> None:
    """Raises ConfigError where there can be none; better before all is scored than behind."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = Problem("--out", f"{out} cannot be made: {error.strerror}; name another folder")
        raise ConfigError([problem], COMMAND) from None


def keep(table: pa.Table, path: Path) -> None:
    """Writes a rescores table outside of artifacts/, checked and atomically.

    Raises:
        SchemaError: if it is none.
        ArtifactError: if it cannot be written.
    """
    write_rows(SCHEMA.validate(table, str(path)), path)


def _built(rewards: Sequence[str]) -> list[Reward]:
    """Raises ConfigError with the problems of all of them."""
    built, problems = [], []
    for text in rewards:
        try:
            built.append(reward_of(text, COMMAND))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems, COMMAND)
    return built


def _score_rollouts(rewards: Sequence[Reward]) -> ScoreRollouts:
    try:
        return ScoreRollouts.model_validate({"rewards": rewards, "max_error_share": 1.0})
    except ValidationError as error:
        raise ConfigError(problems_of(error), COMMAND) from None
