"""A new project: params.yaml, DVC's files and ignore files, in a new folder or beside what a repository has."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rollbook.core.atomic import replacing
from rollbook.core.errors import RollbookError
from rollbook.core.ids import PARAMS_FILE
from rollbook.project.environment import git_says
from rollbook.project.template import FILES, FOLDER, IGNORE_FILES
from rollbook.settings.examples import Example
from rollbook.tables.artifacts import ROOT


@dataclass(frozen=True)
class NewProject:
    """What `create` did.

    Attributes:
        folder: of the project.
        written: paths of the files it wrote or added lines to, relative to the folder.
        made_repository: whether it ran `git init`.
    """

    folder: Path
    written: list[str]
    made_repository: bool


def create(folder: Path, example: Example) -> NewProject:
    """Writes a project into a folder. All or nothing: what stands in the way is refused before the first write.

    Args:
        folder: made if it is not there; may hold other things.
        example: whose params.yaml it gets.

    Raises:
        RollbookError: if a file of another content, or what is no folder or no text, is there already; or git is
            missing.
    """
    files = {
        PARAMS_FILE.as_posix(): example.text,
        **{path: (FOLDER / name).read_text(encoding="utf-8") for path, name in FILES.items()},
    }
    _refuse_no_folder(folder)
    _refuse_others(folder, files)
    added = {
        path: text
        for path, name in IGNORE_FILES.items()
        if (text := _with_lines_of(folder / path, (FOLDER / name).read_text(encoding="utf-8")))
    }
    folder.mkdir(parents=True, exist_ok=True)
    in_repository = git_says("-C", str(folder), "rev-parse", "--is-inside-work-tree") == "true"
    if not in_repository:
        _git_init(folder)
    wanted = {path: text for path, text in files.items() if not (folder / path).exists()} | added
    for path, text in wanted.items():
        with replacing(folder / path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return NewProject(folder, list(wanted), not in_repository)


def _refuse_no_folder(folder: Path) -> None:
    """Raises unless the folder is there or can be made."""
    for each in (folder, *folder.parents):
        if _is_no_folder(each):
            raise RollbookError(f"{each} is a file", "name a folder, new or not")


def _refuse_others(folder: Path, files: Mapping[str, str]) -> None:
    others = [path for path, text in files.items() if _differs(folder / path, text)]
    others += [path for path in IGNORE_FILES if not _is_text(folder / path)]
    parents = {Path(path).parent for path in files}
    others += sorted(each.as_posix() for each in parents if _is_no_folder(folder / each))
    if (folder / ROOT).exists() and not (folder / PARAMS_FILE).exists():
        others.append(f"{ROOT}/")
    if others:
        raise RollbookError(
            f"{folder} has {', '.join(others)} already, of other content than a new project",
            "nothing was written; name another folder, or a new one inside: rollbook init "
            f"{folder / 'rl'}",
        )


def _differs(path: Path, text: str) -> bool:
    if not path.exists():
        return path.is_symlink()
    return not path.is_file() or path.read_bytes() != text.encode()


def _is_text(path: Path) -> bool:
    """Whether lines can be added to it; a file that is not there is made."""
    try:
        path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return True
    except (OSError, UnicodeDecodeError):
        return False
    return True


def _is_no_folder(path: Path) -> bool:
    return path.exists() and not path.is_dir()


def _with_lines_of(path: Path, text: str) -> str:
    """The file with those lines of the text that it lacks; empty if it lacks none."""
    if not path.exists():
        return text
    before = path.read_text(encoding="utf-8")
    lines = before.splitlines()
    missing = [line for line in text.splitlines() if line not in lines]
    if not missing:
        return ""
    end = "" if not before or before.endswith("\n") else "\n"
    return before + end + "\n".join(["", "# Rollbook", *missing, ""])


def _git_init(folder: Path) -> None:
    try:
        subprocess.run(["git", "init", "--quiet", str(folder)], check=True, capture_output=True)
    except FileNotFoundError:
        raise RollbookError("git is not installed", "install git: DVC needs it") from None
    except subprocess.CalledProcessError as error:
        raise RollbookError(
            f"git init failed: {error.stderr.decode(errors='replace').strip()}"
        ) from None
