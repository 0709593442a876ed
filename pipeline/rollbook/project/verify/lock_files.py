"""Whether the lock files themselves are whole: against what git has of them, and against what lies in artifacts/."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from rollbook.core.hashing import files_in
from rollbook.core.ids import SEALED_FOLDER as FOLDER
from rollbook.core.text import listed
from rollbook.dvc.lock import LOCK_FILE, RESCORES_LOCK_FILE, made_by
from rollbook.project.environment import git_says
from rollbook.project.run.revisions import revision_of
from rollbook.project.verify.finding import Discrepancy
from rollbook.tables.artifacts import ROOT


def lock_findings(named: Collection[str]) -> Iterator[Discrepancy]:
    """Lock files that name less than they should: cut off between two entries, emptied, or taken away.

    Args:
        named: paths of all outputs that they and sealed parts name.
    """
    for file, committed in _committed():
        if lost := [path for path in committed if path not in named]:
            kept = len(committed) - len(lost)
            what = (
                f"names {kept} of the {len(committed)} outputs that it names in git's last commit, and not "
                f"{listed(lost)}"
            )
            numbers = (f"{len(committed)} outputs", f"{kept} outputs")
            yield Discrepancy(str(file), what, *numbers, f"git checkout {file}")
            named = {*named, *lost}
    if not named and (made := files_in(ROOT)):
        what = f"names no outputs, and {ROOT}/ holds {len(made)} files"
        mend = (
            f"git checkout {LOCK_FILE}; where git has none, `dvc repro` makes and records all anew"
        )
        yield Discrepancy(str(LOCK_FILE), what, "outputs", "nothing", mend)


def _committed() -> Iterator[tuple[Path, Collection[str]]]:
    """What each lock file, and all of sealed/, names in git's last commit; nothing without git."""
    if git_says("rev-parse", "--verify", "--quiet", "HEAD^{commit}") is None:
        return
    head = revision_of("HEAD")
    yield LOCK_FILE, made_by(head.entries)
    yield RESCORES_LOCK_FILE, made_by(head.rescore_entries)
    yield FOLDER, head.sealed_outputs
