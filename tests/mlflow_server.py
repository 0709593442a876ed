"""`rollbook ui` of a project as a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.projects import environment
from tests.processes import PYTHONPATH, free_port

READY_SECONDS = 120
PRINTED = re.compile(r"MLflow: (http\S+)")


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[str]:
    """Serves a project's runs. Gives the link that the command prints; `ui.log` is all that it prints."""
    port = free_port()
    log = folder / "ui.log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "rollbook.cli.main", "ui", "--port", str(port), *options],
            cwd=folder,
            env={**environment(), "PYTHONPATH": PYTHONPATH},
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    try:
        yield _link(process, log)
    finally:
        process.terminate()
        process.wait(timeout=30)


def _link(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        printed = PRINTED.search(log.read_text())
        if printed:
            return printed[1]
        assert process.poll() is None, f"`rollbook ui` ended:\n{log.read_text()}"
        time.sleep(0.1)
    raise AssertionError(f"no server after {READY_SECONDS} s:\n{log.read_text()}")
