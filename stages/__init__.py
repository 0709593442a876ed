"""Stage programs, one file per stage. `python -m stages.<name> --iteration <key>`; DVC runs them."""

from pipeline.lean_imports import import_pandera

import_pandera()
