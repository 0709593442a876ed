"""Programs run in a scratch folder."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from rollbook.core.errors import RollbookError
from rollbook.core.own_code import variables_for

SHOWN_LINES = 12
AT_EXIT = "nanobind: leaked "
"""From here on a library lists what it did not free, after everything else that a program says."""


def output_of(command: Sequence[str], folder: Path, name: str = "") -> str:
    """What a program prints. It runs in a scratch folder and knows nothing of a DVC around it.

    Args:
        command: the program and its arguments.
        folder: to run it in.
        name: that it puts before its own errors, as `rollbook.core.process.run_program` does; else it has none.

    Raises:
        RollbookError: with its own error, or the last it said, if it fails.
    """
    variables = {name: text for name, text in os.environ.items() if not name.startswith("DVC_")}
    variables |= variables_for(folder)
    result = subprocess.run(command, cwd=folder, env=variables, capture_output=True, check=False)
    if result.returncode:
        text = result.stderr.decode(errors="replace").partition(AT_EXIT)[0]
        lines = [line.rpartition("\r")[2].strip() for line in text.split("\n")]
        lines = [line for line in lines if line]
        own = [place for place, line in enumerate(lines) if name and line.startswith(name)]
        shown = lines[own[-1] :][:SHOWN_LINES] if own else lines[-SHOWN_LINES:]
        said = f"it ended with exit code {result.returncode} and said nothing"
        raise RollbookError("\n".join(shown) or said)
    return result.stdout.decode(errors="replace")
