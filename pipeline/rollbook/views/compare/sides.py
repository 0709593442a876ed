"""What one argument of `rollbook compare` names: a policy of the workspace, or of another revision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from rollbook.core.errors import ArtifactError, ConfigError, Problem, RollbookError, nearest
from rollbook.core.hashing import short
from rollbook.core.ids import BASE_KEY, ITERATION_KEY, PARAMS_FILE
from rollbook.project.off_lock import off_lock
from rollbook.project.report import curves_of
from rollbook.project.run.curves import CURVES_FILE
from rollbook.project.run.revisions import commit_of, revision_of
from rollbook.project.run.run import Run
from rollbook.project.run.store import WORKSPACE
from rollbook.settings.config import Params

COMMAND = "rollbook compare"
NUMBERS = ("prompt_id", "set", "greedy", "sample_index", "reward")

Row = Mapping[str, Any]
"""One of `rollbook.project.report.curve_rows`."""


@dataclass(frozen=True)
class Side:
    """One of the two that are compared.

    Attributes:
        revision: where it is from.
        key: the iteration whose policy is evaluated last.
        rows: of the curves, those of its chain of policies, by step.
    """

    revision: Run
    key: str
    rows: Sequence[Row]

    @property
    def params(self) -> Params:
        return self.revision.params

    @cached_property
    def chain(self) -> list[str]:
        """Iterations from the first up to `key`."""
        return self.params.chain(self.key)

    @property
    def recipe(self) -> str:
        """That the policy was trained under; empty for the base policy."""
        return self.params.every_iteration[self.key].recipe if self.chain else ""

    @property
    def shown(self) -> str:
        """Such as `i0006 of HEAD~1 (3f2a9c11)`."""
        return f"{self.key} of {self.revision.shown}"

    @cached_property
    def evaluations(self) -> pa.Table:
        """NUMBERS of the final evaluation."""
        return self.revision.table("evaluations", self.key).all(NUMBERS)

    def digest(self, key: str) -> str | None:
        """What DVC recorded of the policy of one of its iterations; None if the workspace holds that of another run."""
        if key in self._made_otherwise:
            return None
        return self.revision.md5("policies", key) or None

    @cached_property
    def _made_otherwise(self) -> set[str]:
        """Iterations whose update in the workspace is of another run than dvc.lock names."""
        if not self.revision.is_workspace:
            return set()
        updates = (step.split("@") for step in off_lock(self.revision, self.chain))
        return {key for stage, key in updates if stage == "update_policy"}


def side_of(run: Run, text: str) -> Side:
    """What one argument of `rollbook compare` names.

    Args:
        run: of the workspace.
        text: an iteration or a recipe of the workspace, a git revision or experiment, `workspace`, or `<revision>:`
            with an iteration or recipe of that. Of a recipe it is the latest policy trained under it that is
            evaluated; without either, the last one that is evaluated there.

    Raises:
        RollbookError: if there is no such revision, iteration or recipe, or nothing is evaluated there.
        ConfigError: if it names both something of the workspace and a revision.
    """
    name, colon, what = text.rpartition(":")
    if not colon:
        _refuse_ambiguous(run, text)
        of_workspace = _is_of_workspace(run, text) or _is_no_revision(text)
        name, what = (WORKSPACE, text) if of_workspace else (text, "")
    revision = run if name == WORKSPACE else revision_of(name)
    rows = _curves(revision)
    evaluated = list(dict.fromkeys(row["iteration"] for row in rows if row["set"]))
    key = _named(what, revision, evaluated)
    chain = {BASE_KEY, *revision.params.chain(key)}
    return Side(revision, key, [row for row in rows if row["iteration"] in chain])


def _named(what: str, revision: Run, evaluated: Sequence[str]) -> str:
    """The evaluated iteration that is asked for, itself or by its recipe; the last one of a revision alone."""
    every, recipes = revision.params.every_iteration, _recipes_of(revision.params)
    if what in {"", BASE_KEY, *every}:
        if not evaluated or (what and what not in evaluated):
            raise ArtifactError(
                f"{what or 'nothing'} of {revision.shown} is {'not ' if what else ''}evaluated",
                f"evaluated are: {', '.join(evaluated) or 'none'}; `dvc repro` evaluates what is missing",
            )
        return what or evaluated[-1]
    if what not in recipes:
        known = nearest(what, [BASE_KEY, *every, *recipes])
        said = f"{revision.shown} has no iteration or recipe {what!r}; {known}"
        raise ConfigError([Problem("", said)], COMMAND)
    under = [key for key, item in every.items() if item.recipe == what]
    found = [key for key in evaluated if key in under]
    if not found:
        raise ArtifactError(
            f"no policy of {revision.shown} was trained under recipe {what!r} and evaluated",
            f"iterations under it: {', '.join(under) or 'none'}; `rollbook recipe diff {what} OTHER` compares settings "
            "alone",
        )
    return found[-1]


def _refuse_ambiguous(run: Run, text: str) -> None:
    """An experiment is easily called like the recipe that it tries."""
    if not _is_of_workspace(run, text):
        return
    try:
        commit = commit_of(text)
    except RollbookError:
        return
    what = f"{text!r} is of the workspace and also names the revision {short(commit)}"
    hint = f"say {WORKSPACE}:{text}, or {text}: for the revision"
    raise ConfigError([Problem("", f"{what}; {hint}")], COMMAND)


def _is_no_revision(text: str) -> bool:
    """Whether it is written as an iteration is, and git knows no such name: the one meant is not there."""
    if not (PARAMS_FILE.exists() and ITERATION_KEY.fullmatch(text)):
        return False
    try:
        commit_of(text)
    except RollbookError:
        return True
    return False


def _is_of_workspace(run: Run, text: str) -> bool:
    """Whether it is an iteration or a recipe of today's params.yaml."""
    if not PARAMS_FILE.exists():
        return False
    try:
        params = run.params
    except ConfigError:
        if ITERATION_KEY.fullmatch(text):
            raise
        return False  # revisions can be compared all the same
    return text in {BASE_KEY, *params.every_iteration, *_recipes_of(params)}


def _recipes_of(params: Params) -> set[str]:
    """Names of recipes, those that only sealed iterations know too."""
    return {*params.recipes, *(item.recipe for item in params.every_iteration.values())}


def _curves(revision: Run) -> list[dict[str, Any]]:
    """As they are on disk; of a commit, or where metrics were not pulled, as git has them in curves.csv.

    Raises:
        ArtifactError: if there is neither, or a file is damaged.
    """
    found = curves_of(revision)
    if not found:
        raise ArtifactError(
            f"{CURVES_FILE}: {revision.shown} has none", "only a finished and committed run has one"
        )
    return found
