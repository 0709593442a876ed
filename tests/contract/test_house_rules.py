"""Format, lint, types and import layers: what `make lint` does, as tests."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
CODE = ("setup.py", "pipeline", "stages", "benchmarks", "tests")
RULES = {
    "format": ["ruff", "format", "--check", *CODE],
    "lint": ["ruff", "check", *CODE],
    "types": ["mypy"],
    "layers": ["lint-imports"],
}


def _kept(rule: str, folder: Path) -> None:
    program, *arguments = RULES[rule]
    result = subprocess.run(
        [BIN / program, *arguments], capture_output=True, text=True, cwd=folder, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("rule", RULES)
def test_rule(rule: str) -> None:
    _kept(rule, ROOT)


def test_folders_that_a_run_leaves_change_no_import_order(tmp_path: Path) -> None:
    """ruff's defaults take any folder at the top, as mlflow/ after training, for a package of the project."""
    for name in CODE[1:]:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", CODE[0]):
        shutil.copy(ROOT / name, tmp_path)
    left = re.findall(r"^/(\w+)/$", (ROOT / ".gitignore").read_text(), re.MULTILINE)
    assert {"mlflow", "artifacts"} <= set(left)
    for name in left:
        (tmp_path / name).mkdir()
    _kept("lint", tmp_path)
