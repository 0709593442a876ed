"""Whose code runs: that of a checkout of Rollbook in the checkout, the installed one everywhere else."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rollbook.core.errors import RollbookError

PACKAGE = "rollbook"
"""The name of the package, and of the distribution that holds it."""
SOURCES = Path(__file__).resolve().parents[2]
"""The folder that this package is imported from."""


def source_root(folder: Path) -> Path | None:
    """The source root of a checkout of Rollbook; None for a folder that is none, whatever its `pipeline/` holds."""
    root = folder.absolute() / "pipeline"
    return root if (root / "rollbook" / "core" / "own_code.py").is_file() else None


OLD_FILES = ("pipeline/stage.py", "stages/compute_advantages.py")
"""What tells code of old from folders of the user's own that have the same names."""


def has_old_names(folder: Path) -> bool:
    """Whether a folder holds code of a commit from before Rollbook's modules were called `rollbook.…`.

    Folders `pipeline/` and `stages/` of the user's own are none, whatever else is in them.
    """
    return source_root(folder) is None and all((folder / file).is_file() for file in OLD_FILES)


def is_own(name: str) -> bool:
    """Whether a file is Rollbook's own, by its name in digests."""
    return name.startswith(f"{PACKAGE}/")


def path_in_checkout(name: str) -> Path:
    """Where a file lies in a checkout that holds it, by its name in digests."""
    if name.startswith("rollbook/stages/"):
        return Path(name.removeprefix("rollbook/"))
    return Path("pipeline", name) if is_own(name) else Path(name)


def prefer_own_code(module: str, arguments: Sequence[str]) -> None:
    """In a checkout of Rollbook, starts this program again with the checkout's code unless that runs already.

    In a checkout from before its modules were called `rollbook.…`, which would be read by other code than made it, it
    is refused.

    Args:
        module: that the program is run as.
        arguments: of the program.

    Raises:
        RollbookError: if Python does not import it even so, or it has the old names.
    """
    if has_old_names(Path()):
        raise RollbookError(
            "this is a checkout of Rollbook from before its modules were called rollbook.…, and what runs is the code "
            f"in {SOURCES}",
            "start its own: python -m pipeline.cli.main; or check out a later commit",
        )
    root = source_root(Path())
    if root is None or root.resolve() == SOURCES:
        return
    if str(root) in sys.path or sys.flags.ignore_environment:
        raise RollbookError(
            f"this project has code of its own ({root}), and Python imports that of {SOURCES}",
            "start it without the options -E and -I of Python",
        )
    paths = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    variables = {**os.environ, "PYTHONPATH": paths}
    os.execve(sys.executable, [sys.executable, "-P", "-m", module, *arguments], variables)


def search_project_last() -> None:
    """Makes modules of the project importable for its own components, behind everything that is installed."""
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
