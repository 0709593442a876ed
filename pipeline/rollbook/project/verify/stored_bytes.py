"""Hashes every stored byte again, once: workspace and cache are often one file under two names.

DVC takes an object of its cache for what its name says, and a file for unchanged whose time and size are as before;
a flipped bit is noticed by neither.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rollbook.core.process import processors
from rollbook.dvc.cache import FOLDER_SUFFIX, folder_md5
from rollbook.project.plan_file import PLAN_FILE, same_training_plan
from rollbook.project.verify.finding import Discrepancy, checkout
from rollbook.project.verify.places import StoredFile, StoredOutput
from rollbook.project.verify.recorded import RecordedOutput
from rollbook.tables.artifacts import FOLDERS

CHUNK_BYTES = 1 << 20
UNREADABLE = "unreadable"


@dataclass(frozen=True)
class Hashes:
    """Of one file.

    Attributes:
        md5: hex, or `unreadable` with the reason.
        sha256: hex; empty where nobody asks for it.
        size: bytes.
    """

    md5: str
    sha256: str
    size: int


class HashedFiles:
    """Hashes by file; two names of one file are hashed once."""

    def __init__(self, stored: Iterable[StoredOutput]) -> None:
        self._wanted: dict[tuple[int, int], tuple[Path, bool]] = {}
        self._inode: dict[Path, tuple[int, int]] = {}
        self._hashes: dict[tuple[int, int], Hashes] = {}
        self._gone: dict[Path, Hashes] = {}
        for each in stored:
            with_sha256 = Path(each.output.path).parent.name in FOLDERS
            for file in paths_of(each):
                try:
                    stat = file.stat()
                except OSError as error:  # it was there a moment ago
                    self._gone[file] = Hashes(_unreadable(error), "", 0)
                    continue
                inode = self._inode[file] = (stat.st_dev, stat.st_ino)
                also = self._wanted.get(inode, (file, False))[1]
                self._wanted[inode] = (file, with_sha256 or also)

    def read(self, done: Callable[[int, int], object] = lambda *_: None) -> None:
        """Reads all files, in as many threads as there are processors.

        Args:
            done: called with the files and bytes that were read since the last call.
        """
        with ThreadPoolExecutor(processors()) as pool:
            found = pool.map(lambda item: _hashes(*item), self._wanted.values())
            for inode, hashes in zip(self._wanted, found, strict=True):
                self._hashes[inode] = hashes
                done(1, hashes.size)

    def __getitem__(self, file: Path) -> Hashes:
        return self._gone[file] if file in self._gone else self._hashes[self._inode[file]]

    def are_one(self, one: Path, other: Path) -> bool:
        """Whether two names are one file."""
        both = (self._inode.get(one), self._inode.get(other))
        return None not in both and both[0] == both[1]

    @property
    def count(self) -> int:
        """Files to read."""
        return len(self._wanted)

    @property
    def size(self) -> int:
        """Bytes that were read."""
        return sum(each.size for each in self._hashes.values())


def paths_of(stored: StoredOutput) -> Iterator[Path]:
    """All files to read for an output."""
    for file in stored.files:
        yield from (path for path in (file.workspace, file.cache) if path is not None)


def byte_findings(
    stored: StoredOutput, hashed: HashedFiles, paths_by_md5: Mapping[str, Sequence[str]]
) -> Iterator[Discrepancy]:
    """What is not as DVC recorded it.

    Args:
        stored: an output.
        hashed: its files among others.
        paths_by_md5: outputs and files of folders, to say whose bytes these are.
    """
    output = stored.output
    for file in stored.files:
        if file.md5:
            yield from _of_file(output, file, hashed, paths_by_md5)
    restore = checkout(output.path)
    for name in stored.lacking:
        what = f"the folder in the workspace lacks it; {output.source} lists it"
        yield Discrepancy(f"{output.path}/{name}", what, "a file", "nothing", restore)
    for name in stored.added:
        what = f"the folder in the workspace holds it; {output.source} does not list it"
        yield Discrepancy(f"{output.path}/{name}", what, "nothing", "a file", restore)
    if stored.unlisted and stored.in_workspace and not stored.misplaced:
        md5s = {file.name: hashed[file.workspace].md5 for file in stored.files if file.workspace}
        found = folder_md5(md5s)
        if found != output.md5:
            yield Discrepancy(
                output.path,
                f"the files of the folder come to md5 {found}, {output.source} says {output.md5}; which one differs "
                "is not known, since DVC's listing of the folder is not here",
                output.md5,
                found,
                _fetch(output, ()),
            )


def _of_file(
    output: RecordedOutput,
    file: StoredFile,
    hashed: HashedFiles,
    paths_by_md5: Mapping[str, Sequence[str]],
) -> Iterator[Discrepancy]:
    here, kept = (
        path is not None and hashed[path].md5 != file.md5 for path in (file.workspace, file.cache)
    )
    if not here and not kept:
        return
    if not kept and _is_planned_anew(output, file):
        return
    one = file.workspace and file.cache and hashed.are_one(file.workspace, file.cache)
    both = "in the workspace and in DVC's cache" + (", which are one file" if one else "")
    where = both if here and kept else "in the workspace" if here else "in DVC's cache"
    found = hashed[_only((file.workspace, here), (file.cache, kept))].md5
    others = paths_by_md5.get(found, ())
    whose = f": the bytes of {others[0]}" if others else ""
    subject = "DVC's listing of the folder has" if _is_listing(output, file) else "has"
    yield Discrepancy(
        f"{output.path}/{file.name}" if file.name else output.path,
        f"{subject} md5 {found} {where}{whose}; {output.source} says {file.md5}",
        file.md5,
        found,
        _mend(output, file, here, kept),
    )


def _is_planned_anew(output: RecordedOutput, file: StoredFile) -> bool:
    """Whether all that is new is what `rollbook rescore --stage` has written into the plan since."""
    if output.path != PLAN_FILE.as_posix() or file.workspace is None or file.cache is None:
        return False
    return same_training_plan(file.workspace, file.cache)


def _only(*candidates: tuple[Path | None, bool]) -> Path:
    return next(path for path, wrong in candidates if wrong and path is not None)


def _is_listing(output: RecordedOutput, file: StoredFile) -> bool:
    return not file.name and output.md5.endswith(FOLDER_SUFFIX)


def _mend(output: RecordedOutput, file: StoredFile, here: bool, kept: bool) -> str:
    if not output.cached:
        return f"git checkout {output.path}, or `dvc repro` makes it again"
    if not kept and file.cache is not None:
        return checkout(output.path)
    damaged = (file.cache,) if kept and file.cache is not None else ()
    good_here = file.workspace is not None or (
        _is_listing(output, file) and Path(output.path).exists()
    )
    if kept and not here and good_here:
        return f"{_remove(damaged)}dvc commit --force {output.owner}"
    return _fetch(output, damaged)


def _remove(files: Sequence[Path]) -> str:
    """Removes objects of the cache, which DVC would take for whole."""
    shown = (
        os.path.relpath(file) if file.is_relative_to(Path.cwd()) else str(file) for file in files
    )
    return f"rm -f {' '.join(shown)} && " if files else ""


def _fetch(output: RecordedOutput, damaged: Sequence[Path]) -> str:
    """Takes it from a remote, or makes it again."""
    fetch = f"{_remove(damaged)}dvc fetch {output.path} && {checkout(output.path)}"
    if output.sealed:
        return f"{fetch}; if no remote has it, `rollbook replay {output.step}` makes it again elsewhere"
    again = f"{_remove(damaged)}rm -rf {output.path} && dvc repro --single-item {output.owner}"
    return f"{fetch}; if no remote has it, {again} makes it again"


def _hashes(file: Path, with_sha256: bool) -> Hashes:
    md5, sha, size = hashlib.md5(usedforsecurity=False), hashlib.sha256(), 0
    try:
        with file.open("rb", buffering=0) as stream:
            while chunk := stream.read(CHUNK_BYTES):
                md5.update(chunk)
                if with_sha256:
                    sha.update(chunk)
                size += len(chunk)
    except OSError as error:
        return Hashes(_unreadable(error), "", size)
    return Hashes(md5.hexdigest(), sha.hexdigest() if with_sha256 else "", size)


def _unreadable(error: OSError) -> str:
    return f"{UNREADABLE} ({error.strerror})"
