"""What lies in the workspace and is not what the lock files name, such as after `git checkout` without `dvc checkout`.

Seen by run_info, which no two runs of a step have in common and which is small: no table or policy is hashed.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from rollbook.core.hashing import md5_of
from rollbook.core.text import listed
from rollbook.dvc.running_steps import dvc_is_at_work, label_of
from rollbook.project.run.store import Store
from rollbook.tables.artifacts import ROOT

RUN_INFO = f"{(ROOT / 'run_info').as_posix()}/"


def off_lock(run: Store, keys: Collection[str]) -> list[str]:
    """Steps whose run_info in the workspace is of another run than the lock files name.

    Args:
        run: whose.
        keys: iterations to look at.

    Returns:
        Such as `update_policy@i0001`, in the order of the lock files.
    """
    found = []
    for path, md5 in run.md5s.items():
        file = Path(path)
        if not path.startswith(RUN_INFO) or file.stem not in keys:
            continue
        if differs_from(run.root / file, md5):
            stage, _, rescore = file.parent.relative_to(RUN_INFO).as_posix().partition("/")
            found.append(label_of(stage, file.stem, rescore))
    return found


def differs_from(file: Path, md5: str) -> bool:
    """Whether a file has other bytes; not one that is gone, as outputs are while DVC runs their step again."""
    try:
        return md5_of(file) != md5
    except FileNotFoundError:
        return False


def said_of(steps: Collection[str]) -> str:
    """One line about steps that `off_lock` has found; empty if there are none."""
    if not steps:
        return ""
    named = listed(steps)
    if dvc_is_at_work():
        return f"dvc.lock does not name yet what lies in the workspace of {named}: DVC is at work"
    return (
        f"what lies in the workspace of {named} is of another run than dvc.lock names; "
        "`dvc checkout` puts that in its place, `dvc commit` records what lies here"
    )
