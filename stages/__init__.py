"""Stage programs, one file per stage. `python -m stages.<name> --iteration <key>`; DVC runs them."""

import os

from pipeline.lean_imports import import_pandera
from pipeline.process import die_with_parent

if "DVC_STAGE" in os.environ:  # before anything that takes time: DVC may be killed at any moment
    die_with_parent()
import_pandera()
