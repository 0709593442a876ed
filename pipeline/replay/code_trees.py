"""The project's code in a folder of its own: as it lies in the worktree, or as a commit has it, with a patch."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pipeline.artifacts import ROOT
from pipeline.config import PARAMS_FILE
from pipeline.errors import RollbookError
from pipeline.lineage import PATCH_LIMIT_BYTES, git_says
from pipeline.scratch import SCRATCH
from pipeline.sealed import FOLDER as SEALED_FOLDER
from pipeline.stored_revisions import extract

OWN_PACKAGES = ("pipeline", "stages")
LEFT_OUT = (str(ROOT), ".dvc", SEALED_FOLDER.as_posix())
"""Top-level folders that a tree never has: a stage would take them for the project's own."""
LINKED_FROM_BYTES = 8_000_000
"""Larger files are linked, smaller ones copied: what runs there cannot change them in the worktree."""
STRIPPED_LINES = 3
"""Blank lines of context that a patch may have lost at its end: recorded patches are stripped."""
SHOWN_DIGITS = 8


@dataclass(frozen=True)
class CodeTree:
    """Code to run.

    Attributes:
        folder: to run it in; `artifacts/` and params.yaml there are the replay's own.
        settings: folder with params.yaml and `sealed/` as they are beside this code.
        said: where it comes from, in words.
    """

    folder: Path
    settings: Path
    said: str


class CodeTrees:
    """Makes code trees below a folder, each once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, CodeTree] = {}

    def worktree(self) -> CodeTree:
        """What git tracks or would track of the project, as it lies there; without git the packages of Rollbook."""
        if "worktree" not in self._made:
            tree = CodeTree(self._folder / "worktree", Path(), "the worktree")
            tree.folder.mkdir(parents=True)
            for name in _worktree_files():
                _copy(Path(name), tree.folder / name)
            self._ready(tree)
            self._made["worktree"] = tree
        return self._made["worktree"]

    def commit(self, commit: str, patch: str = "") -> CodeTree:
        """The project as of a commit, with a patch that was recorded against it.

        Raises:
            RollbookError: if git does not have the commit, or the patch was not recorded whole.
        """
        name = commit + hashlib.sha256(patch.encode()).hexdigest()[:SHOWN_DIGITS]
        if name not in self._made:
            said = f"commit {commit[:SHOWN_DIGITS]}" + (" with the recorded patch" if patch else "")
            place = self._folder / name
            tree = CodeTree(place / "project", place / "settings", said)
            tree.folder.mkdir(parents=True)
            if not extract(commit, (), tree.folder):
                raise RollbookError(
                    f"git has no commit {commit[:SHOWN_DIGITS]} with this project",
                    "`git fetch --all --tags` or `git fetch --unshallow` may get it",
                )
            if patch:
                _apply(patch, tree.folder, said)
            tree.settings.mkdir()
            for part in (PARAMS_FILE, SEALED_FOLDER):
                if (tree.folder / part).exists():
                    shutil.move(tree.folder / part, tree.settings / part)
            self._ready(tree)
            self._made[name] = tree
        return self._made[name]

    def _ready(self, tree: CodeTree) -> None:
        for name in LEFT_OUT:
            shutil.rmtree(tree.folder / name, ignore_errors=True)
        scratch = tree.folder / SCRATCH
        scratch.mkdir(parents=True)
        for known in SCRATCH.glob(
            "code-*.json"
        ):  # hashes by content: true anywhere, and slow to make
            shutil.copyfile(known, scratch / known.name)


def complete(tree: CodeTree, names: Iterable[str]) -> None:
    """Adds files that a step ran or read and that its commit lacks, as they lie in the worktree.

    They were never committed. Whether they are still what they were the step itself finds out.
    """
    for name in names:
        file, target = Path(name), tree.folder / name
        if not file.is_absolute() and file.is_file() and not target.exists():
            _copy(file, target)


def _worktree_files() -> list[str]:
    listed = git_says("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if listed is not None:
        names = [name for name in listed.split("\0") if name]
    else:
        found = (file for name in OWN_PACKAGES for file in Path(name).rglob("*.py"))
        names = sorted(file.as_posix() for file in found)
    return [name for name in names if Path(name).parts[0] not in LEFT_OUT]


def _copy(source: Path, target: Path) -> None:
    if source.is_dir() and not source.is_symlink():  # a repository inside of this one
        return
    if not source.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        target.symlink_to(source.resolve())
    elif (
        source.stat().st_size >= LINKED_FROM_BYTES
        and source.stat().st_dev == target.parent.stat().st_dev
    ):
        os.link(source, target)
    else:
        shutil.copy2(source, target)


def _apply(patch: str, folder: Path, said: str) -> None:
    """Applies a recorded patch.

    Raises:
        RollbookError: if it was cut off when it was recorded, or does not apply.
    """
    if len(patch) > PATCH_LIMIT_BYTES:
        raise RollbookError(
            f"{said}: only the first {PATCH_LIMIT_BYTES} bytes of the patch were recorded",
            "check out the code it ran with, or replay with --with-code",
        )
    depth = len(
        [part for part in (git_says("rev-parse", "--show-prefix") or "").split("/") if part]
    )
    # Inside of a repository `git apply` would skip what lies outside of the current folder.
    apart = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.resolve().parent)}
    reason = ""
    for lost in range(STRIPPED_LINES + 1):
        done = subprocess.run(
            ["git", "apply", f"-p{depth + 1}", "--whitespace=nowarn", "-"],
            cwd=folder,
            env=apart,
            input=patch + "\n" + " \n" * lost,
            capture_output=True,
            text=True,
            check=False,
        )
        if not done.returncode:
            return
        reason = reason or " ".join(done.stderr.split())
    raise RollbookError(
        f"{said}: the patch does not apply: {reason}",
        "check out the code it ran with, or replay with --with-code",
    )
