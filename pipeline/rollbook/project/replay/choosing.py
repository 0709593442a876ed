"""Code and params.yaml that a step is replayed with: today's where they are what was recorded, else the commit's."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollbook.core.errors import RollbookError
from rollbook.core.ids import PARAMS_FILE
from rollbook.core.own_code import source_root
from rollbook.dvc.lock import Entry
from rollbook.project.dependencies import Dependencies, dependencies_of
from rollbook.project.replay.code_trees import CodeTree, CodeTrees, complete
from rollbook.project.replay.environment import refuse_other_package
from rollbook.project.replay.settings import find_params, recorded_settings, with_sealed
from rollbook.project.replay.steps import label_of, stage_of
from rollbook.project.run.currency import changes
from rollbook.project.run.revisions import commit_of
from rollbook.project.run.run import Run
from rollbook.tables.run_info import RunInfo

WORKTREE = "worktree"
"""In `Options.with_code`: the code as it lies there, committed or not."""
SHOWN_CHANGES = 8


@dataclass(frozen=True)
class Options:
    """How to replay.

    Attributes:
        revision: whose steps.
        with_code: a revision whose code runs instead of the recorded one, or `worktree`; empty for the recorded one.
        tolerance: of numbers; None: exact where that can be promised.
        device: to compute on instead of the recorded one; empty for the recorded one.
    """

    revision: Run
    with_code: str = ""
    tolerance: float | None = None
    device: str = ""


@dataclass(frozen=True)
class Setting:
    """What a step is replayed in.

    Attributes:
        tree: the code, and the folder to run in.
        settings: where params.yaml comes from, in words.
        raw: its content.
        digest: that the step is to find planned, so that it refuses other code and settings itself; empty for that of
            the code in `tree`.
        code_since: what of the project changed since the step ran.
        notes: what else is worth knowing.
    """

    tree: CodeTree
    settings: str
    raw: Mapping[str, Any]
    digest: str
    code_since: tuple[str, ...]
    notes: tuple[str, ...] = ()


class Choice:
    """Chooses for one step after the other."""

    def __init__(self, options: Options, trees: CodeTrees) -> None:
        self._options = options
        self._trees = trees

    def setting(self, entry: Entry, info: RunInfo) -> Setting:
        """What to replay a step in.

        Args:
            entry: the step.
            info: its run_info.

        Raises:
            RollbookError: if the code or the settings it ran with cannot be had any more.
        """
        stage = stage_of(entry)
        wanted = recorded_settings(stage, info)
        today = None if wanted is None else dependencies_of(stage, wanted)
        since: tuple[str, ...] = ("today's code cannot read its settings",)
        if today is not None:
            since = tuple(map(str, changes(info, today, stage.settings.places())))
        if self._options.with_code:
            tree, digest = self._asked_for(today)
        elif today is not None and (today.code, today.files) == (info.code, info.files):
            tree, digest = self._trees.worktree(), info.digest
        else:
            return self._as_committed(entry, info, since)
        complete(tree, [*info.code, *info.files])
        found = find_params(entry, stage, wanted, self._places(entry, info, since, tree))
        if found is None:
            raise RollbookError(
                f"no params.yaml, neither today's nor that it ran with, gives {label_of(entry)} the settings and "
                "inputs it had, as today's code reads them",
                "check out what it ran with and replay it there",
            )
        return Setting(tree, *found, digest, since, tuple(tree.notes))

    def _asked_for(self, today: Dependencies | None) -> tuple[CodeTree, str]:
        """Other code, and the digest of a step with it if that is known."""
        name = self._options.with_code
        if name == WORKTREE:
            return self._trees.worktree(), "" if today is None else today.digest
        return self._trees.commit(commit_of(name)), ""

    def _places(
        self, entry: Entry, info: RunInfo, since: tuple[str, ...], tree: CodeTree
    ) -> Iterator[tuple[str, Path]]:
        """Folders with a params.yaml that may be the right one, the nearest first."""
        yield "params.yaml", Path()
        revision = self._options.revision
        if not revision.is_workspace:
            yield f"params.yaml of {revision.shown}", revision.root
        if tree.settings != Path():
            yield f"params.yaml of {tree.said}", tree.settings
        recorded = self._recorded(entry, info, since)
        yield f"params.yaml of {recorded.said}", recorded.settings

    def _as_committed(self, entry: Entry, info: RunInfo, since: tuple[str, ...]) -> Setting:
        """Code and params.yaml as of the recorded commit."""
        tree = self._recorded(entry, info, since)
        if not tree.programs.has_library:
            refuse_other_package(label_of(entry), info)
        complete(tree, [*info.code, *info.files])
        if not (tree.settings / PARAMS_FILE).is_file():
            raise RollbookError(
                f"{tree.said} has no {PARAMS_FILE}", "check out the one it ran with"
            )
        raw, said = with_sealed(tree.settings, entry.key), f"params.yaml of {tree.said}"
        then = ".".join(info.environment.python.split(".")[:2])
        now = f"{sys.version_info.major}.{sys.version_info.minor}"
        if then == now or not tree.hashes_depend_on_python:
            return Setting(tree, said, raw, info.digest, since, tuple(tree.notes))
        note = (
            f"it ran under Python {then}, which hashes of code depended on then, so {tree.said} was not compared with "
            "them"
        )
        return Setting(tree, said, raw, "", since, (note, *tree.notes))

    def _recorded(self, entry: Entry, info: RunInfo, since: tuple[str, ...]) -> CodeTree:
        """The project as of the commit and patch that were recorded."""
        git = info.environment.git
        if not git.commit:
            if not (self._options.with_code or source_root(Path())):
                refuse_other_package(label_of(entry), info)
            changed = "; ".join(since[:SHOWN_CHANGES]) or "params.yaml"
            raise RollbookError(
                f"{label_of(entry)} ran with other code or settings than today's, outside of git ({changed})",
                "undo the change, or replay with --with-code worktree",
            )
        return self._trees.commit(git.commit, git.patch_bytes)
