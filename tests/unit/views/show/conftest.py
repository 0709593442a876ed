"""The project of `project.py`, made once and copied for tests that change it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.unit.views.show import project as made


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project, not to be changed."""
    folder = tmp_path_factory.mktemp("showing")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        made.make()
    return folder


@pytest.fixture
def looked_at(pristine: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project as the current directory, to be read only."""
    monkeypatch.chdir(pristine)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return pristine


@pytest.fixture
def changeable(pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it as the current directory."""
    folder = tmp_path / "project"
    shutil.copytree(pristine, folder)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return folder
