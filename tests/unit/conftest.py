"""One finished run for all tests, made once in each process that asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.finished_run import copy, make


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Look, do not touch."""
    return make(tmp_path_factory.mktemp("finished"))


@pytest.fixture
def run(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run as the current folder, to change at will."""
    monkeypatch.chdir(copy(finished, tmp_path / "run"))
    return tmp_path / "run"
