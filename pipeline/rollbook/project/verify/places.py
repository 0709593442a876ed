"""Where the bytes of recorded outputs lie on this machine: in the workspace, in DVC's cache, in both or nowhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollbook.core.errors import ArtifactError
from rollbook.core.hashing import files_in, md5_of
from rollbook.dvc.cache import FOLDER_SUFFIX, cached_path, is_folder, members
from rollbook.project.verify.finding import Discrepancy, checkout
from rollbook.project.verify.recorded import RecordedOutput


@dataclass(frozen=True)
class StoredFile:
    """One file of an output: the output itself, a file of a folder, or the listing of a folder.

    Attributes:
        name: within the folder; empty for the output itself and for a listing.
        md5: recorded.
        workspace: where it lies there, or None.
        cache: where it lies there, or None.
        belongs: where in DVC's cache it belongs, there or not; None for what is not kept there.
    """

    name: str
    md5: str
    workspace: Path | None
    cache: Path | None
    belongs: Path | None

    @property
    def anywhere(self) -> Path | None:
        """Where it can be read."""
        return self.workspace or self.cache


@dataclass(frozen=True)
class StoredOutput:
    """An output as it lies here.

    Attributes:
        output: as recorded.
        files: of which it consists.
        lacking: names of files that its folder in the workspace lacks.
        added: names of files in its folder that do not belong to it.
        unlisted: whether DVC's listing of the folder is not here, or damaged; its files are then those of the
            workspace, without their md5.
        misplaced: whether the workspace holds a file where a folder belongs, or a folder where a file does.
    """

    output: RecordedOutput
    files: Sequence[StoredFile]
    lacking: Sequence[str] = ()
    added: Sequence[str] = ()
    unlisted: bool = False
    misplaced: bool = False

    @property
    def in_workspace(self) -> bool:
        return Path(self.output.path).exists()

    @property
    def is_whole(self) -> bool:
        """Whether each of its files can be read here, in one place or the other."""
        return bool(self.files) and all(file.anywhere is not None for file in self.files)

    @property
    def lacks_cache(self) -> bool:
        """Whether DVC's cache should keep it and does not, or not all of it."""
        return self.output.cached and (
            self.unlisted or any(file.cache is None for file in self.files)
        )

    @property
    def members(self) -> Mapping[str, Path]:
        """Files of a folder by name, where they can be read."""
        return {
            file.name: file.anywhere
            for file in self.files
            if file.name and file.anywhere is not None
        }

    @property
    def content(self) -> Path | None:
        """The file of an output that is no folder, where it can be read."""
        return self.files[0].anywhere if self.files and not is_folder(self.output.md5) else None


def find(output: RecordedOutput) -> StoredOutput:
    """Where an output lies. Reads nothing but the listing of a folder."""
    here = Path(output.path)
    misplaced = here.exists() and here.is_dir() != is_folder(output.md5)
    if not is_folder(output.md5):
        return StoredOutput(
            output, [_file("", output.md5, here, output.cached)], misplaced=misplaced
        )
    listing = cached_path(output.md5)
    found = {file.relative_to(here).as_posix(): file for file in files_in(here)}
    own = StoredFile("", output.md5.removesuffix(FOLDER_SUFFIX), None, _if_there(listing), listing)
    try:
        listed = members(output.md5) if own.cache is None or md5_of(listing) == own.md5 else None
    except ArtifactError:
        listed = None
    if listed is None:
        files = [StoredFile(name, "", file, None, None) for name, file in found.items()]
        return StoredOutput(
            output, [*([own] if own.cache else []), *files], (), (), True, misplaced
        )
    files = [_file(name, md5, here / name, output.cached) for name, md5 in listed.items()]
    there = here.is_dir()
    return StoredOutput(
        output,
        [own, *files],
        lacking=sorted(listed.keys() - found.keys()) if there else (),
        added=sorted(found.keys() - listed.keys()),
        misplaced=misplaced,
    )


def misplaced_findings(stored: StoredOutput) -> Iterator[Discrepancy]:
    """Says of a file where a folder belongs, or the other way round, how it is put right."""
    if stored.misplaced:
        kinds = ("a folder", "a file") if is_folder(stored.output.md5) else ("a file", "a folder")
        path, source = stored.output.path, stored.output.source
        what = f"the workspace holds {kinds[1]} here; {source} says that it is {kinds[0]}"
        yield Discrepancy(path, what, *kinds, checkout(path))


def _file(name: str, md5: str, here: Path, cached: bool) -> StoredFile:
    kept = cached_path(md5) if cached else None
    return StoredFile(name, md5, _if_there(here), kept and _if_there(kept), kept)


def _if_there(file: Path) -> Path | None:
    return file if file.is_file() else None
