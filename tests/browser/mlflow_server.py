"""`rollbook ui` of a project as a process of its own, and MLflow's pages without what they open beside themselves."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page

from tests.e2e.projects import environment
from tests.processes import PYTHONPATH, free_port

READY_SECONDS = 120
PRINTED = re.compile(r"MLflow: (http\S+)")
CALM = (
    "localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true');"
    "localStorage.setItem('mlflow.workflowType_v1', '\"machine_learning\"');"
)
"""As after the first visit: the assistant closed, `Model training` chosen."""


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serves a project's runs. Gives the link that the command prints."""
    port = free_port()
    log = folder / "ui.log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "rollbook.cli.main", "ui", "--port", str(port)],
            cwd=folder,
            env={**environment(), "PYTHONPATH": PYTHONPATH},
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    try:
        yield _link(process, log, port)
    finally:
        process.terminate()
        process.wait(timeout=30)


def calm_page(browser: Browser) -> Page:
    """A page of a context of its own, in which MLflow's pages open nothing beside themselves."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.add_init_script(CALM)
    return context.new_page()


def _link(process: subprocess.Popen[bytes], log: Path, port: int) -> str:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        printed = PRINTED.search(log.read_text())
        if printed and _answers(port):
            return printed[1]
        assert process.poll() is None, f"`rollbook ui` ended:\n{log.read_text()}"
        time.sleep(0.1)
    raise AssertionError(f"no server after {READY_SECONDS} s:\n{log.read_text()}")


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            return True
    except OSError:
        return False
