"""Stored artifacts by md5, wherever they are: in the workspace, in DVC's cache, or at its remote.

Whatever is handed out was hashed: DVC takes an object of its cache for what its name says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from rollbook.core.errors import ArtifactError, RollbookError
from rollbook.core.hashing import files_in, md5_of
from rollbook.dvc.cache import (
    FOLDER_SUFFIX,
    cached_path,
    fetch,
    folder_md5,
    is_cached,
    is_folder,
    link,
    members,
    members_in,
    object_in,
)

IN_CACHE = "DVC's cache"
LISTING = "DVC's listing of the folder"


@dataclass(frozen=True)
class AlteredCopy:
    """A stored copy whose bytes are not those that were recorded.

    Attributes:
        where: in words, such as `the workspace`.
        at: the file or folder.
        name: of the file within the artifact, if it is an object of DVC's cache that belongs to a folder.
    """

    where: str
    at: Path
    name: str = ""


def dvc_md5(path: Path, md5: Callable[[Path], str] = md5_of) -> str:
    """What DVC calls the bytes of a file, or of all files of a folder.

    Args:
        path: of either.
        md5: of a file.
    """
    if not path.is_dir():
        return md5(path)
    return folder_md5({file.relative_to(path).as_posix(): md5(file) for file in files_in(path)})


class StoredArtifacts:
    """Puts stored artifacts into a folder, and finds copies that are not what was recorded.

    Args:
        fetched: folder for what comes from a remote.
        in_workspace: whether the project's own `artifacts/` should hold what is asked for, so that anything else
            there is an alteration.
    """

    def __init__(self, fetched: Path, in_workspace: bool) -> None:
        self._fetched = fetched
        self._in_workspace = in_workspace
        self._known: dict[tuple[int, int, int, int], str] = {}
        self._problem = ""

    def put(self, path: str, md5: str, target: Path) -> None:
        """Puts an artifact at `target`, linked where the file system allows it and copied elsewhere.

        Args:
            path: of the artifact in the project.
            md5: it was recorded with.
            target: where to put it; its folder is made.

        Raises:
            ArtifactError: if no copy with these bytes is within reach.
        """
        here = Path(path)
        if self._is(here, md5):
            link(here, target)
        elif not (self._from_cache(md5, target) or self._from_remote(md5, target)):
            raise self._out_of_reach(path, md5)

    def altered(self, path: str, md5: str) -> Iterator[AlteredCopy]:
        """Copies of an artifact, in the workspace and in DVC's cache, that are not what was recorded.

        Copies that are one file are named once. Those that are not there are no alteration.
        """
        here, cached = Path(path), cached_path(md5)
        one = here.is_file() and cached.is_file() and here.samefile(cached)
        if self._in_workspace and here.exists() and not self._is(here, md5):
            where = "the workspace (one file with DVC's cache)" if one else "the workspace"
            yield AlteredCopy(where, here)
            if one:
                return
        yield from self._bad_objects(md5)

    def _bad_objects(self, md5: str) -> Iterator[AlteredCopy]:
        """Objects of DVC's cache, of a folder its files too, whose bytes are not what their names say."""
        cached = cached_path(md5)
        if not cached.is_file():
            return
        if self._md5(cached) != md5.removesuffix(FOLDER_SUFFIX):
            yield AlteredCopy(IN_CACHE, cached, LISTING if is_folder(md5) else "")
        elif is_folder(md5):
            for name, each in members(md5).items():
                file = cached_path(each)
                if file.is_file() and not self._is(file, each):
                    yield AlteredCopy(IN_CACHE, file, name)

    def _is(self, path: Path, md5: str) -> bool:
        """Whether a file or folder is there and has these bytes."""
        if path.is_dir():
            return dvc_md5(path, self._md5) == md5
        return path.is_file() and self._md5(path) == md5

    def _md5(self, file: Path) -> str:
        """Of a file; remembered as long as it stays the same."""
        stat = file.stat()
        mark = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if mark not in self._known:
            self._known[mark] = md5_of(file)
        return self._known[mark]

    def _from_cache(self, md5: str, target: Path) -> bool:
        """Whether DVC's cache had all of it, and it is at `target` now."""
        if any(True for _ in self._bad_objects(md5)) or not is_cached(md5):
            return False
        listed = members(md5) if is_folder(md5) else {"": md5}
        for name, each in listed.items():
            link(cached_path(each), target / name)
        return True

    def _from_remote(self, md5: str, target: Path) -> bool:
        """Whether DVC's remote had all of it, and it is at `target` now. The cache stays as it is."""
        if not self._fetch([md5]):
            return False
        found = object_in(self._fetched, md5)
        listed = members_in(found) if is_folder(md5) else {"": md5}
        if not self._fetch(listed.values()):
            return False
        for name, each in listed.items():
            link(object_in(self._fetched, each), target / name)
        return True

    def _fetch(self, md5s: Collection[str]) -> bool:
        """Whether objects of DVC's remote were fetched, or had been, and are what their names say; if not, why."""
        try:
            fetch(md5s, self._fetched)
        except RollbookError as error:
            self._problem = error.message
            return False
        self._problem = "what arrived has other bytes"
        return all(
            self._md5(object_in(self._fetched, md5)) == md5.removesuffix(FOLDER_SUFFIX)
            for md5 in md5s
        )

    def _out_of_reach(self, path: str, md5: str) -> ArtifactError:
        places = dict.fromkeys(each.where for each in self.altered(path, md5))
        if places:
            return ArtifactError(
                f"{path}: other bytes than were recorded (md5 {md5}) are in {' and '.join(places)}, and no remote "
                f"gives the right ones: {self._problem}",
                "`rollbook replay` of the step that makes it says what was changed",
            )
        return ArtifactError(
            f"{path}: neither the workspace nor DVC's cache has it (md5 {md5}), and no remote gives it: "
            f"{self._problem}",
            f"`dvc pull {path}` where the remote is within reach",
        )
