"""Stage programs, one file per stage. `python -m stages.<name> --iteration <key>`; DVC runs them."""

import os
import sys

from pipeline.fork_client import is_started_by_dvc, run_forked
from pipeline.lean_imports import import_pandera
from pipeline.process import die_with_parent
from pipeline.running_steps import has_lost_dvc

if "DVC_STAGE" in os.environ:  # before anything that takes time: DVC may be killed at any moment
    die_with_parent()
    if is_started_by_dvc() and has_lost_dvc():
        sys.exit("the DVC that started this program has ended")
    run_forked()
try:
    import_pandera()
except ModuleNotFoundError as error:
    if "DVC_STAGE" not in os.environ:
        raise
    sys.exit(f"{error} for {sys.executable}; is the environment active? source .venv/bin/activate")
