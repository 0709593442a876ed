"""DVC's cache on this machine, by md5: where an object lies, and what a folder consists of.

A folder's md5 ends in `.dir`; its object lists the files of the folder. DVC does not check what it finds here.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from rollbook.core.errors import DISK_FULL, FREE_SPACE, ArtifactError, RollbookError

FOLDER_SUFFIX = ".dir"
OBJECTS = Path("files/md5")
"""Where a cache has its objects."""
PART_PREFIX = ".part-"
"""Of a copy that is being made."""
SHOWN = 5
TRANSFER_LOG = "dvc_data.hashfile.transfer"
"""Where DVC says what kept it from fetching an object; it goes on with the others."""


def cached_path(md5: str) -> Path:
    """Where the object of an md5 belongs, whether or not it is there; `.dir` for the listing of a folder.

    Raises:
        RollbookError: outside of a DVC project.
    """
    return object_in(_cache(Path.cwd())[0] / OBJECTS, md5)


def object_in(objects: Path, md5: str) -> Path:
    """Where the object of an md5 belongs in a folder of objects."""
    return objects / md5[:2] / md5[2:]


def cache_folder() -> Path:
    """The whole cache, wherever DVC's own settings put it.

    Raises:
        RollbookError: outside of a DVC project.
    """
    return _cache(Path.cwd())[0]


def shares_files() -> bool:
    """Whether DVC's settings let a file of the workspace be one with the object of the cache.

    Raises:
        RollbookError: outside of a DVC project.
    """
    return "hardlink" in _cache(Path.cwd())[1]


def link(source: Path, target: Path, share: bool = True) -> None:
    """One more name for a file, or for all files of a folder; a copy, not to be written to, where there cannot be one.

    Args:
        source: of the bytes.
        target: where they are to be; its folder is made. A file there appears whole or not at all.
        share: whether they may be one file; else they are copied, to be written to.
    """
    if source.is_dir():
        for file in sorted(source.rglob("*")):
            if file.is_file():
                link(file, target / file.relative_to(source), share)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if share:
        try:
            os.link(source, target)
            return
        except OSError:
            pass  # another file system
    part = target.with_name(f"{PART_PREFIX}{target.name}")
    shutil.copyfile(source, part)
    part.chmod(0o444 if share else 0o644)
    part.replace(target)


def is_cached(md5: str) -> bool:
    """Whether the object is here; of a folder, its listing and all its files.

    Raises:
        ArtifactError: if the listing of a folder is damaged.
        RollbookError: outside of a DVC project.
    """
    if not cached_path(md5).is_file():
        return False
    return not is_folder(md5) or all(cached_path(each).is_file() for each in members(md5).values())


def fetch(
    md5s: Iterable[str], into: Path | None = None, names: Mapping[str, str] | None = None
) -> int:
    """Takes objects from the project's default remote into the cache; how many were not here.

    By md5, all at once: `dvc fetch` looks through all outputs for each path that it is given. What arrives is hashed,
    and nothing else is kept.

    Args:
        md5s: of files, and of listings of folders.
        into: a folder that gets them instead of the cache, and is laid out as `object_in` says.
        names: what objects are called in errors, by md5.

    Raises:
        RollbookError: if there is no remote, it cannot be reached, it lacks objects or has damaged ones, or the disk
            is full; those that could be fetched are here then.
    """
    objects = into or _cache(Path.cwd())[0] / OBJECTS
    missing = [md5 for md5 in dict.fromkeys(md5s) if not object_in(objects, md5).is_file()]
    if not missing:
        return 0
    from dvc.exceptions import DvcException
    from dvc.fs.callbacks import TqdmCallback
    from dvc.repo import Repo
    from dvc_data.hashfile.db import get_odb
    from dvc_data.hashfile.hash_info import HashInfo

    try:
        with Repo() as repo, TqdmCallback(desc="Fetching", unit="file") as bar, _heard() as heard:
            cache, remote = repo.cache.local, repo.cloud.get_remote_odb(command="fetch")
            target = get_odb(cache.fs, str(into), hash_name="md5") if into else cache
            wanted = [HashInfo("md5", md5) for md5 in missing]
            how = {"verify": True, "cache_odb": target}
            repo.cloud.transfer(remote, target, wanted, callback=bar, **how)
            lacking = [md5 for md5 in missing if not object_in(objects, md5).is_file()]
            there = {md5: remote.oid_to_path(md5) for md5 in lacking if remote.exists(md5)}
            found = not lacking or remote.fs.exists(remote.path)
            url = str(remote.path)
    except (DvcException, OSError, ImportError) as error:
        if _is_full(error):
            raise _no_space(len(missing), len(missing)) from None
        raise RollbookError(
            f"nothing can be fetched: {' '.join(str(error).split())}",
            "`dvc remote list` shows remotes",
        ) from None
    if lacking:
        raise _Unfetched(len(missing), lacking, there, url, found, heard, names or {}).error()
    return len(missing)


@contextlib.contextmanager
def _heard() -> Iterator[list[BaseException]]:
    """Collects what DVC would only print: why single objects could not be fetched."""
    log, heard = logging.getLogger(TRANSFER_LOG), list[BaseException]()

    def hear(record: logging.LogRecord) -> bool:
        reason = record.exc_info[1] if record.exc_info else None
        heard.extend([reason] if reason else [])
        return reason is None

    log.addFilter(hear)
    try:
        yield heard
    finally:
        log.removeFilter(hear)


@dataclass(frozen=True)
class _Unfetched:
    """Objects that did not arrive.

    Attributes:
        asked: how many objects were to be fetched.
        lacking: md5 of those that did not arrive.
        there: where those of them lie that the remote has.
        url: of the remote.
        found: whether there is anything.
        heard: what DVC said about single objects.
        names: see `fetch`.
    """

    asked: int
    lacking: Sequence[str]
    there: Mapping[str, str]
    url: str
    found: bool
    heard: Sequence[BaseException]
    names: Mapping[str, str]

    def error(self) -> RollbookError:
        """Why, and what helps."""
        if any(map(_is_full, self.heard)):
            return _no_space(len(self.lacking), self.asked)
        if self.there and self.heard:
            reason = " ".join(str(self.heard[0]).split())
            what = f"{self._some(self.there)} cannot be fetched from {self.url}: {reason}"
            return RollbookError(what, "run the same command again; what arrived stays")
        if self.there:
            places = ", ".join(sorted(self.there.values())[:SHOWN])
            return RollbookError(
                f"the remote has other bytes than were recorded of {self._some(self.there)}",
                f"remove {places}, then `dvc push` where they were made: it does not replace what lies there",
            )
        if not self.found:
            return RollbookError(
                f"the remote {self.url} cannot be reached, or nothing was ever pushed to it",
                "is it mounted, and the right one? `dvc remote list` shows remotes",
            )
        return RollbookError(
            f"the remote {self.url} lacks {self._some(self.lacking)}",
            "run `dvc push` where they were made",
        )

    def _some(self, md5s: Iterable[str]) -> str:
        listed = list(md5s)
        return f"{len(listed)} of {self.asked} objects: {self._named(listed)}"

    def _named(self, md5s: Iterable[str]) -> str:
        called = sorted(self.names.get(md5, md5) for md5 in md5s)
        return ", ".join([*called[:SHOWN], *(["…"] if len(called) > SHOWN else [])])


def _is_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in DISK_FULL


def _no_space(lacking: int, asked: int) -> RollbookError:
    what = f"no space left on the disk: {lacking} of {asked} objects did not arrive"
    return RollbookError(what, FREE_SPACE)


def is_folder(md5: str) -> bool:
    """Whether the md5 is that of a folder."""
    return md5.endswith(FOLDER_SUFFIX)


def members(md5: str) -> Mapping[str, str]:
    """Md5 of every file of a folder, by its path within the folder.

    Raises:
        ArtifactError: if the listing is missing or damaged.
        RollbookError: outside of a DVC project.
    """
    return members_in(cached_path(md5))


def members_in(listing: Path) -> Mapping[str, str]:
    """The same from a file with DVC's listing of a folder, wherever it lies."""
    try:
        entries = json.loads(listing.read_text(encoding="utf-8"))
        return {str(entry["relpath"]): str(entry["md5"]) for entry in entries}
    except FileNotFoundError:
        raise ArtifactError(
            f"{listing}: not in DVC's cache", "`dvc fetch` takes it from a remote"
        ) from None
    except (OSError, ValueError, LookupError, TypeError):
        raise ArtifactError(
            f"{listing}: damaged; it should list the files of a folder",
            "remove it and run `dvc fetch`",
        ) from None


def folder_md5(md5s: Mapping[str, str]) -> str:
    """What DVC calls a folder of these files, by path within it: the md5 of its listing, and `.dir`."""
    listing = [{"md5": md5s[name], "relpath": name} for name in sorted(md5s)]
    digest = hashlib.md5(json.dumps(listing, sort_keys=True).encode(), usedforsecurity=False)
    return digest.hexdigest() + FOLDER_SUFFIX


@lru_cache(maxsize=8)
def _cache(project: Path) -> tuple[Path, tuple[str, ...]]:
    """Folder of the project's cache, and how DVC puts its objects into the workspace, likeliest first."""
    from dvc.config import Config

    config = Config.from_cwd()
    if config.dvc_dir is None:
        raise RollbookError(f"{project} is no DVC project", "run from the project's folder")
    settings = config["cache"]
    folder = settings.get("dir") or Path(config.dvc_dir) / "cache"
    return Path(folder).absolute(), tuple(settings.get("type") or ())
