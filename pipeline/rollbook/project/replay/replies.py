"""What judges replied when a step ran first, put where its replay finds it: no endpoint is asked again."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable
from pathlib import Path

from rollbook.components.rewards.recorded_replies import FOLDER, LACKING
from rollbook.components.rewards.verdicts import KINDS
from rollbook.core.errors import ArtifactError, RollbookError
from rollbook.dvc.lock import Entry
from rollbook.project.replay.code_trees import CodeTree
from rollbook.project.replay.stored import StoredArtifacts

JUDGE = "rewards/judge.py"
"""Ends a name in the hashes of code of a step that may ask."""


def put_replies(entry: Entry, code: Iterable[str], stored: StoredArtifacts, tree: CodeTree) -> None:
    """Makes the folder that keeps judges from asking, with the table that the step made then if it is within reach.

    Args:
        entry: the step.
        code: files that it ran.
        stored: where recorded tables come from.
        tree: code that it is replayed with.

    Raises:
        RollbookError: if that code would ask again, whatever was recorded.
    """
    folder = tree.folder / FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if not any(name.endswith(JUDGE) for name in code):
        return
    if not tree.programs.keeps_replies:
        raise RollbookError(
            f"the code of {tree.said} asks a judge again, and a replay asks nobody",
            "replay with --with-code worktree, or another revision that keeps to recorded replies",
        )
    for path, md5 in entry.outputs.items():
        if Path(path).parts[1] in KINDS and path.endswith(".parquet"):
            with contextlib.suppress(ArtifactError):
                stored.put(path, md5, folder / Path(path).name)


def refuse_unrecorded(tree: CodeTree) -> None:
    """Looks whether a judge wanted to ask.

    Raises:
        ArtifactError: if it did: the step was not replayed then.
    """
    file = tree.folder / LACKING
    if not file.exists():
        return
    rollouts = file.read_text(encoding="utf-8").splitlines()
    raise ArtifactError(
        f"{len(dict.fromkeys(rollouts))} replies of a judge are not recorded, the first about {rollouts[0]}, and a "
        "replay asks nobody",
        "the table that the step made holds them, if it is within reach and what the judge is sent is what it was",
    )
