"""`rollbook pull`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

from pipeline.artifacts import FOLDERS, ROOT
from pipeline.errors import RollbookError


@click.command()
@click.argument("revision", default="workspace")
def pull(revision: str) -> None:
    """Get all of a run that can be read without a model: tables, metrics and run_info, but no policies.

    With it every command works that looks at a run: show, lineage, verify, status, compare, rescore, report. A policy
    is one more `dvc pull artifacts/policies/i0006`, and `dvc pull` gets all of them. What lies in the workspace already
    is left alone.

    REVISION is a commit, branch, tag or experiment whose tables are to be compared with others: they are put into DVC's
    cache, and the workspace stays as it is.

    \b
    Examples: git clone REPOSITORY project && cd project && rollbook pull
              rollbook pull HEAD~1 && rollbook compare HEAD~1 workspace
    """
    from pipeline.dvc_cache import fetch
    from pipeline.stored_revisions import revision_of

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
    if found.is_workspace:
        wanted = {path: md5 for path, md5 in wanted.items() if not Path(path).exists()}
    fetched = fetch(wanted.values())
    if wanted and found.is_workspace:
        command = [sys.executable, "-m", "dvc", "checkout", "--quiet", "--allow-missing"]
        if subprocess.run(command, check=False).returncode:
            raise RollbookError(
                "`dvc checkout --allow-missing` failed", "what it said stands above"
            )
    where = "put in place" if found.is_workspace else f"of {found.shown} in DVC's cache"
    click.echo(
        f"{len(wanted)} outputs {where}, {fetched} files fetched; not pulled: {' and '.join(FOLDERS)}"
    )
