"""The project's code in a folder of its own: as it lies in the worktree, or as a commit has it, with a patch."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rollbook.core.errors import RollbookError
from rollbook.core.hashing import LARGE
from rollbook.core.ids import PARAMS_FILE, SEALED_FOLDER
from rollbook.core.own_code import path_in_checkout
from rollbook.core.scratch import SCRATCH
from rollbook.project.environment import git_bytes, git_says
from rollbook.project.replay.programs import TreePrograms
from rollbook.project.run.revisions import extract
from rollbook.tables.artifacts import ROOT
from rollbook.tables.run_info import SHOWN_DIGITS

VENV_FILE = "pyvenv.cfg"
"""Marks a virtual environment."""
LEFT_OUT = (str(ROOT), ".dvc", SEALED_FOLDER.as_posix())
"""Top-level folders that a tree never has: a stage would take them for the project's own."""
HASHED_BY_PYTHON = ("ast.unparse(", "ast.dump(")
"""Calls whose text differs between minor versions of Python."""
STRIPPED_LINES = 3
"""Blank lines of context that a patch may have lost at its end: once they were recorded without them."""


@dataclass(frozen=True)
class CodeTree:
    """Code to run.

    Attributes:
        folder: to run it in; `artifacts/` and params.yaml there are the replay's own.
        settings: folder with params.yaml and `sealed/` as they are beside this code.
        said: where it comes from, in words.
        notes: what it lacks.
    """

    folder: Path
    settings: Path
    said: str
    notes: Sequence[str] = ()

    @cached_property
    def programs(self) -> TreePrograms:
        """Its programs, to be run."""
        return TreePrograms(self.folder, self.said)

    @property
    def hashes_depend_on_python(self) -> bool:
        """Whether its own code hashes code as Python's minor version writes it, as Rollbook once did."""
        file = self.folder / "pipeline" / "code.py"
        if not (self.programs.has_old_names and file.is_file()):
            return False
        return any(call in file.read_text(encoding="utf-8") for call in HASHED_BY_PYTHON)


class CodeTrees:
    """Makes code trees below a folder, each once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, CodeTree] = {}

    def worktree(self) -> CodeTree:
        """What git tracks or would track of the project, as it lies there; without git its smaller files."""
        if "worktree" not in self._made:
            tree = CodeTree(self._folder / "worktree", Path(), "the worktree")
            tree.folder.mkdir(parents=True)
            for name in _worktree_files():
                _copy(Path(name), tree.folder / name)
            self._ready(tree)
            self._made["worktree"] = tree
        return self._made["worktree"]

    def commit(self, commit: str, patch: bytes = b"") -> CodeTree:
        """The project as of a commit, with a patch that was recorded against it.

        Raises:
            RollbookError: if git does not have the commit, or the patch does not apply.
        """
        name = commit + hashlib.sha256(patch).hexdigest()[:SHOWN_DIGITS]
        if name not in self._made:
            said = f"commit {commit[:SHOWN_DIGITS]}" + (" with the recorded patch" if patch else "")
            place = self._folder / name
            found = extract(commit, (), place / "project")
            if not found.names:
                raise RollbookError(
                    f"git has no commit {commit[:SHOWN_DIGITS]} with this project",
                    "`git fetch --all --tags` or `git fetch --unshallow` may get it",
                )
            notes = [
                f"{said} was put together without {each}, which points out of the project"
                for each in found.left_out
            ]
            tree = CodeTree(place / "project", place / "settings", said, notes)
            if patch:
                _apply(patch, tree.folder, said)
            tree.settings.mkdir(parents=True)
            for part in (PARAMS_FILE, SEALED_FOLDER):
                if (tree.folder / part).exists():
                    shutil.move(tree.folder / part, tree.settings / part)
            self._ready(tree)
            self._made[name] = tree
        return self._made[name]

    def _ready(self, tree: CodeTree) -> None:
        for name in LEFT_OUT:
            if (tree.folder / name).is_symlink():  # what is written there would end up behind it
                (tree.folder / name).unlink()
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
        file = path_in_checkout(name)
        target = tree.folder / file
        if not file.is_absolute() and file.is_file() and not target.exists():
            _copy(file, target)


def _worktree_files() -> list[str]:
    listed = git_bytes("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if listed is not None:
        names = [os.fsdecode(name) for name in listed.split(b"\0") if name]
    else:
        names = sorted(_files_without_git())
    return [name for name in names if Path(name).parts[0] not in LEFT_OUT]


def _files_without_git() -> Iterator[str]:
    """Files that may be the project's: none that is hidden or large, and no virtual environment."""
    for folder, folders, names in os.walk(Path()):
        here = Path(folder)
        folders[:] = [
            name
            for name in folders
            if not name.startswith((".", "__pycache__")) and not (here / name / VENV_FILE).exists()
        ]
        if here == Path():
            folders[:] = [name for name in folders if name not in LEFT_OUT]
        files = (here / name for name in names if not name.startswith("."))
        yield from (each.as_posix() for each in files if _size(each) < LARGE)


def _size(file: Path) -> int:
    return file.stat().st_size if file.is_file() else 0


def _copy(source: Path, target: Path) -> None:
    if source.is_dir() and not source.is_symlink():  # a repository inside of this one
        return
    if not source.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        target.symlink_to(source.resolve())
    else:
        shutil.copy2(source, target)  # a link would let what runs there change it in the worktree


def _apply(patch: bytes, folder: Path, said: str) -> None:
    """Applies a recorded patch.

    Raises:
        RollbookError: if it does not apply.
    """
    depth = len(
        [part for part in (git_says("rev-parse", "--show-prefix") or "").split("/") if part]
    )
    # Inside of a repository `git apply` would skip what lies outside of the current folder.
    apart = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.resolve().parent)}
    stripped = not patch.endswith(b"\n")
    reason = ""
    for lost in range(STRIPPED_LINES + 1) if stripped else (0,):
        done = subprocess.run(
            ["git", "apply", f"-p{depth + 1}", "--whitespace=nowarn", "-"],
            cwd=folder,
            env=apart,
            input=patch + (b"\n" + b" \n" * lost if stripped else b""),
            capture_output=True,
            check=False,
        )
        if not done.returncode:
            return
        reason = reason or " ".join(done.stderr.decode(errors="replace").split())
    raise RollbookError(
        f"{said}: the patch does not apply: {reason}",
        "check out the code it ran with, or replay with --with-code",
    )
