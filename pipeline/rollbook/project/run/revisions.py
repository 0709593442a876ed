"""The run as another git revision or experiment has it: settings, lock entries, and artifacts in DVC's cache.

    run = revision_of("HEAD~3")          # also a branch, a tag, the name of an experiment, or `workspace`
    run.path("evaluations", "i0003")     # the object in DVC's cache
    run.root / "dvc.lock"                # what git has of it as files: PROJECT_FILES, in a temporary folder

Nothing in the workspace changes, and nothing is fetched: an object that is not on this machine is an error that names
the command that gets it. Folders: `rollbook.dvc.cache.members`.
"""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollbook.core.errors import RollbookError
from rollbook.core.ids import PARAMS_FILE, SEALED_FOLDER
from rollbook.dvc.lock import LOCK_FILE, RESCORES_LOCK_FILE
from rollbook.project.environment import git_bytes, git_says
from rollbook.project.run.curves import CURVES_FILE
from rollbook.project.run.run import Run
from rollbook.project.run.store import WORKSPACE

PROJECT_FILES = (
    PARAMS_FILE.as_posix(),
    LOCK_FILE.as_posix(),
    RESCORES_LOCK_FILE.as_posix(),
    SEALED_FOLDER.as_posix(),
    CURVES_FILE.as_posix(),
)
"""What `Run.root` holds of a commit, as far as it is there."""
EXPERIMENT_PARTS = 5


def revision_of(name: str) -> Run:
    """The run at a commit, branch, tag or experiment, or as it lies in the workspace.

    Raises:
        RollbookError: if git knows no such name, or several experiments have it.
    """
    if name == WORKSPACE:
        return Run()
    commit = commit_of(name)
    holder = tempfile.TemporaryDirectory(prefix="rollbook-revision-")
    extract(commit, PROJECT_FILES, Path(holder.name))
    return Run(Path(holder.name), name, commit, holder)


def commit_of(name: str) -> str:
    """Hash of the commit that a name means; names of experiments come after those that git itself knows.

    Raises:
        RollbookError: if git knows no such name, or several experiments have it.
    """
    found = git_says("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    if found:
        return found
    named = {commit for each, commit in _experiments() if each == name}
    if len(named) > 1:
        raise RollbookError(
            f"{len(named)} experiments are called {name!r}: {', '.join(sorted(named))}",
            "name the commit instead",
        )
    if not named:
        if git_says("rev-parse", "--git-dir") is None:
            raise RollbookError(
                f"{Path.cwd()} is no git repository, so there is no {name!r} to look up",
                "iterations, recipes and `workspace` can be named without git",
            )
        known = sorted({each for each, _ in _experiments()})
        listed = f"; experiments: {', '.join(known)}" if known else ""
        raise RollbookError(
            f"git knows no commit, branch, tag or experiment {name!r}{listed}",
            "run from the project's folder; `git fetch` and `dvc exp pull` get what others have",
        )
    return named.pop()


@dataclass(frozen=True)
class Extracted:
    """What `extract` did.

    Attributes:
        names: of the files and folders that were asked for and are there; without any asked for, all at the top.
        left_out: files that point out of the project, and what else has no place in a folder of its own.
    """

    names: Sequence[str]
    left_out: Sequence[str] = ()


def extract(commit: str, paths: Sequence[str], folder: Path) -> Extracted:
    """Writes files and folders of a commit below a folder, as far as they are there.

    Args:
        commit: its hash.
        paths: relative to the current folder; none: everything below it.
        folder: to write into.

    Raises:
        RollbookError: if git cannot read the commit.
    """
    listed = git_bytes("ls-tree", "-z", "--name-only", commit, "--", *paths) or b""
    present = [os.fsdecode(name) for name in listed.split(b"\0") if name]
    if not present:
        return Extracted(())
    packing = ["git", "--literal-pathspecs", "archive", "--format=tar", commit, "--"]
    packed = subprocess.run(
        [*packing, *(present if paths else ())], capture_output=True, check=False
    )
    if packed.returncode:
        said = packed.stderr.decode(errors="replace").strip()
        raise RollbookError(
            f"git cannot read {commit}: {said}", "`git fetch --unshallow` gets it all"
        )
    left_out = []

    def kept(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
        try:
            return tarfile.data_filter(member, path)
        except tarfile.FilterError:
            left_out.append(member.name)
            return None

    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter=kept)
    return Extracted(present, left_out)


def _experiments() -> Iterator[tuple[str, str]]:
    """Name and commit of every experiment of DVC: refs/exps/<2 digits>/<38 digits>/<name>."""
    listed = git_says("for-each-ref", "--format=%(objectname) %(refname)", "refs/exps") or ""
    for line in listed.splitlines():
        commit, _, ref = line.partition(" ")
        parts = ref.split("/", EXPERIMENT_PARTS - 1)
        if len(parts) == EXPERIMENT_PARTS and len(parts[2]) == 2:
            yield parts[-1], commit
