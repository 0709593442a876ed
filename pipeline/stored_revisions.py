"""The project as another git revision or experiment has it: settings, lock entries, and artifacts in DVC's cache.

    revision = revision_of("HEAD~3")     # also a branch, a tag, the name of an experiment, or `workspace`
    revision.params                      # its params.yaml with its sealed iterations, resolved
    revision.md5s                        # md5 of every output by path: its dvc.lock, rescores/dvc.lock and sealed/
    revision.path("evaluations", "i0003")    # a file: in the workspace if it is the same there, else in the cache
    revision.root / "dvc.lock"           # what git has of it as files: PROJECT_FILES, in a temporary folder

Nothing in the workspace changes, and nothing is fetched: an object that is not on this machine is an error that names
the command that gets it. Folders: `pipeline.dvc_cache.members`.
"""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.artifacts import FOLDERS, damaged, path_of, read_facts
from pipeline.config import PARAMS_FILE, Params
from pipeline.dvc_cache import cached_path
from pipeline.dvc_lock import LOCK_FILE, RESCORES_LOCK_FILE
from pipeline.errors import ArtifactError, ConfigError, RollbookError
from pipeline.lineage import git_bytes, git_says
from pipeline.params import read_params
from pipeline.report import CURVES_FILE
from pipeline.sealed import FOLDER as SEALED_FOLDER
from pipeline.sealed import recorded_md5s

WORKSPACE = "workspace"
"""The name of what lies in the project's folder, committed or not."""
PROJECT_FILES = (
    PARAMS_FILE.as_posix(),
    LOCK_FILE.as_posix(),
    RESCORES_LOCK_FILE.as_posix(),
    SEALED_FOLDER.as_posix(),
    CURVES_FILE.as_posix(),
)
"""What `Revision.root` holds of a commit, as far as it is there."""
SHOWN_DIGITS = 8
EXPERIMENT_PARTS = 5


@dataclass(frozen=True)
class Revision:
    """A state of the project.

    Attributes:
        name: as it was asked for.
        commit: its full hash; empty for the workspace.
        root: folder that holds PROJECT_FILES as they are there; the project's own for the workspace.
    """

    name: str
    commit: str
    root: Path
    _holder: object = field(default=None, repr=False, compare=False)

    @property
    def is_workspace(self) -> bool:
        return not self.commit

    @property
    def shown(self) -> str:
        """The name, and of a commit the first digits of its hash."""
        short = self.commit[:SHOWN_DIGITS]
        return self.name if not short or self.name.startswith(short) else f"{self.name} ({short})"

    @cached_property
    def params(self) -> Params:
        """Its params.yaml with its sealed iterations, as today's Rollbook reads them.

        Raises:
            ConfigError: if it cannot.
        """
        try:
            return read_params(self.root / PARAMS_FILE)
        except ConfigError as error:
            raise ConfigError(error.problems, f"{PARAMS_FILE} of {self.name}") from None

    @cached_property
    def md5s(self) -> Mapping[str, str]:
        """Md5 of every output by path, those of sealed iterations and of re-scores too."""
        return recorded_md5s(self.root)

    def path(self, kind: str, key: str) -> Path:
        """A file with this artifact: as it lies in the workspace, else the object in DVC's cache.

        Of a folder that is not in the workspace it is the listing, see `pipeline.dvc_cache`.

        Raises:
            ArtifactError: if it was not made there or is not on this machine.
        """
        path = path_of(kind, key)
        if self.is_workspace and path.exists():
            return path
        md5 = self.md5s.get(path.as_posix())
        if md5 is None:
            raise ArtifactError(
                f"{path}: {self.shown} has no such output",
                "`git log dvc.lock` shows which commits have",
            )
        found = cached_path(md5)
        if not found.exists():
            raise ArtifactError(
                f"{path}: the version of {self.shown} (md5 {md5}) is not in DVC's cache",
                self._command(path),
            )
        return found

    def table(
        self, kind: str, key: str, columns: Sequence[str], rows: pc.Expression | None = None
    ) -> pa.Table:
        """Some columns of a table, and of them the rows that an expression picks. Contents are not hashed again.

        Raises:
            ArtifactError: if it is not on this machine, damaged, another artifact, or lacks a column.
        """
        path = self.path(kind, key)
        facts = read_facts(path)
        if (facts.kind, facts.key) != (kind, key):
            raise ArtifactError(
                f"{path}: holds {facts.kind} {facts.key}, and should be {kind} {key} of {self.shown}",
                "`rollbook verify` says what else is not as it was",
            )
        try:
            found = pq.read_table(path, columns=list(columns), filters=rows)
        except (pa.ArrowException, OSError) as error:
            raise damaged(path, error) from None
        if missing := set(columns) - set(found.column_names):
            raise ArtifactError(
                f"{path}: a {kind} table of version {facts.version} without {', '.join(sorted(missing))}",
                "read it with the Rollbook that wrote it",
            )
        return found

    def _command(self, path: Path) -> str:
        """What brings it onto this machine."""
        if self.is_workspace and path.parts[1] in FOLDERS:
            return f"`dvc pull {path}`"
        if self.is_workspace:
            return "`rollbook pull` gets what was made before, but policies"
        return f"`rollbook pull {self.name}` fetches what it has but policies"


def revision_of(name: str) -> Revision:
    """The project at a commit, branch, tag or experiment, or as it lies in the workspace.

    Raises:
        RollbookError: if git knows no such name, or several experiments have it.
    """
    if name == WORKSPACE:
        return Revision(name, "", Path())
    commit = commit_of(name)
    holder = tempfile.TemporaryDirectory(prefix="rollbook-revision-")
    extract(commit, PROJECT_FILES, Path(holder.name))
    return Revision(name, commit, Path(holder.name), holder)


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
