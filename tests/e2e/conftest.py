"""One small run, trained once, shared by the tests that only look at it or copy it."""

import shutil
from pathlib import Path

import pytest

from tests.e2e.projects import make_project, repro


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two iterations, trained. Look, do not touch."""
    folder = make_project(tmp_path_factory.mktemp("trained") / "project")
    repro(folder)
    return folder


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Path:
    """A copy of the trained project to change at will."""
    folder = tmp_path / "project"
    shutil.copytree(trained, folder, symlinks=True)
    return folder
