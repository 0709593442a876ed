"""Stage programs, one file per stage. `python -P -m rollbook.stages.<name> --iteration <key>`; DVC runs them."""

import os
import sys

from rollbook.core.errors import RollbookError
from rollbook.core.lean_imports import import_pandera
from rollbook.core.own_code import prefer_own_code
from rollbook.core.process import die_with_parent, started_module
from rollbook.dvc.fork_client import STAGES, is_started_by_dvc, run_forked
from rollbook.dvc.running_steps import has_lost_dvc

MODULE, ARGUMENTS = started_module()

if "DVC_STAGE" in os.environ:  # before anything that takes time: DVC may be killed at any moment
    die_with_parent()
    if is_started_by_dvc() and has_lost_dvc():
        sys.exit("the DVC that started this program has ended")
if MODULE.startswith(STAGES):
    try:
        prefer_own_code(f"rollbook.stages.{MODULE.rpartition('.')[2]}", ARGUMENTS)
    except RollbookError as error:
        sys.exit(f"{MODULE}: {error}")
    run_forked()
try:
    import_pandera()
except ModuleNotFoundError as error:
    if "DVC_STAGE" not in os.environ:
        raise
    sys.exit(f"{error} for {sys.executable}; is the environment active? source .venv/bin/activate")
