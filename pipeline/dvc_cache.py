"""DVC's cache on this machine, by md5: where an object lies, and what a folder consists of.

A folder's md5 ends in `.dir`; its object lists the files of the folder. DVC does not check what it finds here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from pipeline.errors import ArtifactError, RollbookError

FOLDER_SUFFIX = ".dir"
SHOWN = 5


def cached_path(md5: str) -> Path:
    """Where the object of an md5 belongs, whether or not it is there; `.dir` for the listing of a folder.

    Raises:
        RollbookError: outside of a DVC project.
    """
    return _folder(Path.cwd()) / md5[:2] / md5[2:]


def is_cached(md5: str) -> bool:
    """Whether the object is here; of a folder, its listing and all its files.

    Raises:
        ArtifactError: if the listing of a folder is damaged.
        RollbookError: outside of a DVC project.
    """
    if not cached_path(md5).is_file():
        return False
    return not is_folder(md5) or all(cached_path(each).is_file() for each in members(md5).values())


def fetch(md5s: Iterable[str]) -> int:
    """Takes objects of files from the project's default remote into the cache; how many were not here.

    By md5, all at once: `dvc fetch` looks through all outputs for each path that it is given.

    Raises:
        RollbookError: if there is no remote, it cannot be reached, or it lacks objects.
    """
    missing = [md5 for md5 in dict.fromkeys(md5s) if not cached_path(md5).is_file()]
    if not missing:
        return 0
    from dvc.exceptions import DvcException
    from dvc.repo import Repo
    from dvc_data.hashfile.hash_info import HashInfo

    try:
        with Repo() as repo:
            failed = repo.cloud.pull([HashInfo("md5", md5) for md5 in missing]).failed
    except (DvcException, OSError) as error:
        raise RollbookError(
            f"nothing can be fetched: {' '.join(str(error).split())}",
            "`dvc remote list` shows remotes",
        ) from None
    if failed:
        named = ", ".join(sorted(str(each.value) for each in failed)[:SHOWN])
        raise RollbookError(
            f"the remote lacks {len(failed)} of {len(missing)} objects: {named}",
            "run `dvc push` where they were made",
        )
    return len(missing)


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
def _folder(project: Path) -> Path:
    """Objects of the project's cache, wherever DVC's own settings put it."""
    from dvc.config import Config

    config = Config.from_cwd()
    if config.dvc_dir is None:
        raise RollbookError(f"{project} is no DVC project", "run from the project's folder")
    folder = config["cache"].get("dir") or Path(config.dvc_dir) / "cache"
    return Path(folder).absolute() / "files" / "md5"
