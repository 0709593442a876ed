"""Whose code runs: a checkout's own there, the installed one elsewhere, and nothing of a project's by its name."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT

COMMAND = "from rollbook.cli.main import main; main()"
STAGE = "import runpy; sys.orig_argv = ['', '-P', '-m', NAME]; runpy.run_module(NAME, run_name='__main__')"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of Rollbook whose programs say that they are its own."""
    package = tmp_path / "pipeline" / "rollbook"
    for folder in (package / "core", package / "cli", tmp_path / "stages"):
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
    (package / "__init__.py").write_text(
        "from pathlib import Path\n__path__.append(str(Path(__file__).parents[2]))\n"
    )
    (package / "core" / "own_code.py").touch()
    for program in (package / "cli" / "main.py", tmp_path / "stages" / "report.py"):
        program.write_text("import sys; print('own', *sys.argv[1:])\n")
    return tmp_path


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A project with code that is called as Rollbook's folders are, and a function of its own."""
    for name in ("pipeline/rollbook", "stages"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('of the project')\n")
    for name in ("pipeline", "rollbook"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('of the project')\n")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "rewards.py").write_text("def f():\n    return 'found'\n")
    return tmp_path


def _ran(folder: Path, *words: str, code: str = "") -> tuple[int, str, str]:
    """Runs Python in a folder, where this library is installed, as it were; `code` finds it without variables."""
    paths = [str(ROOT / "pipeline"), *(each for each in sys.path if "site-packages" in each)]
    if code:
        begin = f"import sys; sys.path[:0] = {paths!r}; NAME = 'rollbook.stages.report'; "
        words = (*words, "-c", begin + code)
    ended = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize("module", ["rollbook.cli.main", "rollbook.stages.report"])
def test_a_checkout_runs_its_own_code(checkout: Path, module: str) -> None:
    assert _ran(checkout, "-P", "-m", module, "more") == (0, "own more\n", "")


@pytest.mark.parametrize("module", ["rollbook.cli.main", "rollbook.stages.report"])
def test_a_checkout_of_older_code_is_refused(tmp_path: Path, module: str) -> None:
    for name in ("pipeline/stage.py", "stages/compute_advantages.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    status, said, error = _ran(tmp_path, "-P", "-m", module)
    assert (status, said) == (1, "") and "Traceback" not in error
    assert "from before its modules were called rollbook" in error
    assert "python -m pipeline.cli.main" in error


@pytest.mark.parametrize("code", [COMMAND, STAGE])
def test_where_python_may_not_find_it_that_is_said(checkout: Path, code: str) -> None:
    status, said, error = _ran(checkout, "-E", code=code)
    assert (status, said) == (1, "")
    assert "this project has code of its own" in error and "Traceback" not in error


def test_names_of_a_project_do_no_harm(hostile: Path) -> None:
    assert "of the project" in _ran(hostile, "-m", "rollbook.cli.main")[2]
    assert "no params.yaml in" in _ran(hostile, "-P", "-m", "rollbook.cli.main", "check")[2]
    assert "no params.yaml in" in _ran(hostile, "-P", "-m", "rollbook.stages.report")[2]


def test_modules_of_a_project_are_found_behind_all_others(hostile: Path) -> None:
    code = (
        "from rollbook.core.process import run_program; from rollbook.core.registry import load_object; "
        "run_program(lambda: print(load_object('mine.rewards:f')()), 'x')"
    )
    assert _ran(hostile, "-P", "-c", code) == (0, "found\n", "")
