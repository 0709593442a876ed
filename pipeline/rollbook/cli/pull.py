"""`rollbook pull`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import click

from rollbook.core.errors import RollbookError
from rollbook.tables.artifacts import FOLDERS, ROOT

SHOWN = 5
"""Outputs that are named."""


@click.command()
@click.argument("revision", default="workspace")
def pull(revision: str) -> None:
    """Get all of a run that can be read without a model: tables, metrics and run_info, but no policies and critics.

    With it every command works that looks at a run: show, lineage, verify, status, compare, rescore, report. A policy
    is one more `dvc pull artifacts/policies/i0006`, and `dvc pull` gets all of them. What lies in the workspace already
    is left alone, and named if it is not what dvc.lock says. If some of it cannot be had, the rest is put in place, and
    the exit code is 1.

    REVISION is a commit, branch, tag or experiment whose tables are to be compared with others: they are put into DVC's
    cache, and the workspace stays as it is.

    \b
    Examples: git clone REPOSITORY project && cd project && rollbook pull
              rollbook pull HEAD~1 && rollbook compare HEAD~1 workspace
    """
    from rollbook.cli.console import refuse_elsewhere
    from rollbook.core.atomic import unwritable
    from rollbook.core.text import listed
    from rollbook.dvc.cache import cached_path, fetch, link, shares_files
    from rollbook.project.run.revisions import revision_of

    refuse_elsewhere()
    found = revision_of(revision)
    heavy = tuple(f"{(ROOT / kind).as_posix()}/" for kind in FOLDERS)
    recorded = {
        path: md5 for path, md5 in found.md5s.items() if path.startswith(f"{ROOT.as_posix()}/")
    }
    if not recorded:
        raise RollbookError(
            f"{found.shown} names no outputs in dvc.lock",
            "only what `dvc repro` has made can be pulled",
        )
    wanted = {path: md5 for path, md5 in recorded.items() if not path.startswith(heavy)}
    there: dict[str, str] = {}
    if found.is_workspace:
        there = {path: md5 for path, md5 in wanted.items() if os.path.lexists(path)}
        wanted = {path: md5 for path, md5 in wanted.items() if path not in there}
    absent = [md5 for md5 in {*wanted.values()} if not cached_path(md5).is_file()]
    problem: RollbookError | None = None
    try:
        fetch(wanted.values(), names={md5: path for path, md5 in wanted.items()})
    except RollbookError as error:
        problem = error
    fetched = sum(cached_path(md5).is_file() for md5 in absent)
    here = {path: md5 for path, md5 in wanted.items() if cached_path(md5).is_file()}
    if found.is_workspace:
        for path, md5 in here.items():
            try:
                link(cached_path(md5), Path(path), shares_files())
            except OSError as error:
                raise unwritable(Path(path), error) from error
    where = "put in place" if found.is_workspace else f"of {found.shown} in DVC's cache"
    if here or not problem:
        click.echo(
            f"{len(here)} outputs {where}, {fetched} files fetched; not pulled: "
            f"{', '.join(FOLDERS[:-1])} and {FOLDERS[-1]}"
        )
    if differing := _differing(there):
        named = listed(differing, SHOWN)
        click.echo(
            f"left as they are, though not what was recorded: {named}; `rollbook verify` says more"
        )
    if problem:
        raise problem


def _differing(recorded: Mapping[str, str]) -> list[str]:
    """Those of the outputs in the workspace whose bytes are others than recorded, but for digests of re-scores."""
    from rollbook.core.hashing import md5_of
    from rollbook.dvc.cache import cached_path
    from rollbook.project.plan_file import PLAN_FILE, same_training_plan

    def differs(path: str, md5: str) -> bool:
        file, cached = Path(path), cached_path(md5)
        if not file.is_file():
            return True
        if (cached.is_file() and file.samefile(cached)) or md5_of(file) == md5:
            return False
        return file != PLAN_FILE or not same_training_plan(file, cached)

    return [path for path, md5 in recorded.items() if differs(path, md5)]
