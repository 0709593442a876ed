"""Programs run in a scratch folder."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from pipeline.errors import RollbookError

SHOWN_LINES = 12


def output_of(command: Sequence[str], folder: Path) -> str:
    """What a program prints. It runs in a scratch folder and knows nothing of a DVC around it.

    Raises:
        RollbookError: with the last it said, if it fails.
    """
    variables = {name: text for name, text in os.environ.items() if not name.startswith("DVC_")}
    result = subprocess.run(command, cwd=folder, env=variables, capture_output=True, check=False)
    if result.returncode:
        text = result.stderr.decode(errors="replace")
        lines = [line.rpartition("\r")[2].strip() for line in text.split("\n")]
        said = "\n".join([line for line in lines if line][-SHOWN_LINES:])
        raise RollbookError(said or f"it ended with exit code {result.returncode} and said nothing")
    return result.stdout.decode(errors="replace")
