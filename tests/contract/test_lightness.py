"""What an audit, a re-score or a light stage imports stays light: no torch, transformers, datasets, vllm or mlflow."""

import subprocess
import sys
from pathlib import Path

import pytest

from rollbook.project.plan_file import ITERATION_STAGES, ONCE_STAGES, RESCORE_STAGE

ROOT = Path(__file__).parents[2]
HEAVY = (
    "torch",
    "transformers",
    "datasets",
    "vllm",
    "mlflow",
    "accelerate",
    "sklearn",
    "matplotlib",
)
SOURCES = ROOT / "pipeline"
HEAVY_PARTS = (
    "rollbook.components.engines.lean.",
    "rollbook.rl.tokens",
    "rollbook.rl.training.",
    "rollbook.views.mlflow.",
)
"""What may import them at once: the model side of engine and update, and what is sent to MLflow."""
LIBRARY = sorted(
    ".".join(path.relative_to(SOURCES).with_suffix("").parts)
    for path in (SOURCES / "rollbook").rglob("*.py")
    if path.stem != "__init__"
)
PROGRAMS = [
    *(f"rollbook.stages.{name}" for name in (*ONCE_STAGES, *ITERATION_STAGES, RESCORE_STAGE)),
    "rollbook.stages.check",
    "rollbook.stages.report",
]


def _heavy_after(code: str) -> set[str]:
    report = f"{code}\nimport sys\nprint(*(name for name in {HEAVY!r} if name in sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", report], capture_output=True, text=True, cwd=ROOT, check=True
    )
    return set(result.stdout.split())


def test_all_light_modules_together() -> None:
    light = [name for name in LIBRARY if not name.startswith(HEAVY_PARTS)]
    assert len(light) > 300
    assert _heavy_after("\n".join(f"import {name}" for name in light)) == set()


@pytest.mark.parametrize("program", PROGRAMS)
def test_stage_programs_import_nothing_heavy(program: str) -> None:
    assert _heavy_after(f"import {program}") == set()


def test_checking_the_shipped_params_needs_no_torch() -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'datasets', 'mlflow'): sys.modules[name] = None\n"
        "from rollbook.settings.params import read_params\n"
        "from rollbook.project.plan import make_plan\n"
        "make_plan(read_params())\n"
        "for name in ('torch', 'transformers', 'datasets', 'mlflow'): del sys.modules[name]\n"
    )
    assert _heavy_after(code) == set()


def test_a_policy_is_shown_without_the_settings_of_all_stages() -> None:
    """To build their classes takes a fifth of the command's time."""
    looks = "import rollbook.views.show.policies, rollbook.views.show.prompts, rollbook.views.show.layout"
    code = f"{looks}\nimport sys\nassert 'rollbook.settings.recipe_sections' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
