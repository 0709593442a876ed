"""An entry of `rescores:` run as cached DVC steps."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rollbook.core.errors import RollbookError
from rollbook.project.check import refuse_missing_files
from rollbook.project.plan import rescore_plan
from rollbook.project.plan_file import PLAN_FILE, RESCORE_STAGE, RESCORES
from rollbook.settings.config import Params
from rollbook.tables.artifacts import read_json, write_json

PIPELINE = "rescores/dvc.yaml"


def run_stage(params: Params, name: str, keys: Sequence[str]) -> None:
    """Runs the steps of one re-score that are not up to date; nothing before them.

    Raises:
        ConfigError: for files that settings name and that are not there.
        RollbookError: if DVC fails; what it said is on the terminal.
    """
    refuse_missing_files(params)
    # Digests of the training chain stay as planned: what was changed there is not to run, and not to look run.
    write_json({**read_json(PLAN_FILE), RESCORES: rescore_plan(params)}, PLAN_FILE)
    steps = [f"{PIPELINE}:{RESCORE_STAGE}@{name}-{key}" for key in keys]
    here = Path(sys.executable).parent
    sys.stdout.flush()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "dvc", "repro", "--single-item", *steps],
        env={**os.environ, "PATH": f"{here}{os.pathsep}{os.environ.get('PATH', '')}"},
        check=False,
    )
    if done.returncode:
        raise RollbookError(
            f"rescores.{name}: `dvc repro --single-item` failed with exit code {done.returncode}",
            "what went wrong stands above; iterations that were done are kept",
        )
