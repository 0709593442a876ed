"""Format, lint, types and import layers: what `make lint` does, as tests."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
RULES = {
    "format": ["ruff", "format", "--check", "pipeline", "stages", "tests"],
    "lint": ["ruff", "check", "pipeline", "stages", "tests"],
    "types": ["mypy"],
    "layers": ["lint-imports"],
}


@pytest.mark.parametrize("rule", RULES)
def test_rule(rule: str) -> None:
    program, *arguments = RULES[rule]
    result = subprocess.run(
        [BIN / program, *arguments], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
