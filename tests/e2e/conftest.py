"""One small run, trained once, shared by the tests that only look at it or copy it."""

import fcntl
import os
import shutil
from pathlib import Path

import pytest

from tests.e2e.projects import commit, make_project, repro, run


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two iterations, trained, by one process for all. Look, do not touch."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared
    folder, done = shared / "trained" / "project", shared / "trained" / "done"
    with (shared / "trained.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            repro(make_project(folder))
            done.touch()
    return folder


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Path:
    """A copy of the trained project to change at will."""
    folder = tmp_path / "project"
    shutil.copytree(trained, folder, symlinks=True)
    return folder


@pytest.fixture(scope="module")
def origin(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained project, committed and pushed to a DVC remote, with nothing left in its own cache."""
    home = tmp_path_factory.mktemp("pushed")
    folder = home / "origin"
    shutil.copytree(trained, folder, symlinks=True)
    run(folder, "dvc", "remote", "add", "--default", "storage", str(home / "remote"))
    commit(folder, "Trained")
    run(folder, "dvc", "push")
    shutil.rmtree(folder / ".dvc" / "cache")
    return folder
