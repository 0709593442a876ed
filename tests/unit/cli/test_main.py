"""Whose code `rollbook` runs: that of the project, if it has its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CODE = "from pipeline.cli.main import main; main()"


@pytest.fixture
def own_code(tmp_path: Path) -> Path:
    """A project whose command says that it is the project's."""
    package = tmp_path / "pipeline" / "cli"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "main.py").write_text("import sys; print('own', *sys.argv[1:])\n")
    return tmp_path


def _said(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    path = f"import sys; sys.path[:0] = [{str(ROOT)!r}]; sys.argv[1:] = ['check']; "
    environment = {**os.environ, "PYTHONPATH": "", **variables}
    command = [sys.executable, "-c", path + CODE]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )


def test_a_project_with_code_of_its_own_runs_it(own_code: Path) -> None:
    assert _said(own_code).stdout == "own check\n"


def test_where_python_may_not_find_it_that_is_said(own_code: Path) -> None:
    ended = _said(own_code, PYTHONSAFEPATH="1")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "unset PYTHONSAFEPATH" in ended.stderr
