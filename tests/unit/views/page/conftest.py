"""The run of `project.py`, made once, and copied for tests that change it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rollbook.views.page import vega
from tests.unit.views.page import project as made


@pytest.fixture(scope="session")
def pristine_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run with hostile completions, not to be changed."""
    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        made.make(texts=made.HOSTILE)
        vega.bundle()  # kept in the project, so that it is made once
    return folder


@pytest.fixture
def stored_run(pristine_run: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run as the current directory, to be read only."""
    monkeypatch.chdir(pristine_run)
    return pristine_run


@pytest.fixture
def own_run(pristine_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it as the current directory."""
    folder = tmp_path / "run"
    shutil.copytree(pristine_run, folder)
    monkeypatch.chdir(folder)
    return folder
