"""A stage that generates, killed in the middle and started again: the same bytes, and less to do."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from rollbook.components.engines.kept_batches import FOLDER
from rollbook.tables.artifacts import path_of
from tests.e2e.projects import edit_params, environment, make_project, repro, run

pytestmark = pytest.mark.e2e
BATCH_SIZE = 4
ENGINE = {"name": "transformers", "batch_size": BATCH_SIZE}
WAIT_SECONDS = 120.0


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose next stages generate."""
    folder = make_project(
        tmp_path_factory.mktemp("kills") / "project",
        iterations=1,
        recipes__grpo__generate_rollouts__engine=ENGINE,
        evaluate_policy__engine=ENGINE,
    )
    edit_params(
        folder,
        recipes__grpo__prepare_prompts__prompts_per_iteration=64,
        recipes__grpo__generate_rollouts__group_size=8,
        evaluate_policy__samples=7,
    )
    repro(folder, "prepare_prompts@i0001")
    return folder


def _command(stage: str, key: str) -> list[str]:
    return ["python", "-P", "-m", f"rollbook.stages.{stage}", "--iteration", key]


def _kill_in_the_middle(folder: Path, command: list[str], batches: int) -> int:
    """Kills the stage once it has kept some batches; how many it has."""
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        deadline = time.monotonic() + WAIT_SECONDS
        while len(list((folder / FOLDER).glob("*/*/[!.]*.npz"))) < batches:
            assert process.poll() is None, "it ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.002)
        process.kill()
    return len(list((folder / FOLDER).glob("*/*/[!.]*.npz")))


def _progress(folder: Path, stage: str, key: str) -> dict[str, Any]:
    info = json.loads((folder / path_of(f"run_info/{stage}", key)).read_text())
    progress: dict[str, Any] = info["progress"][0]
    return progress


@pytest.mark.parametrize(
    ("stage", "key", "kind"),
    [("generate_rollouts", "i0001", "rollouts"), ("evaluate_policy", "i0000", "evaluations")],
)
def test_killed_in_the_middle_and_started_again(
    prepared: Path, stage: str, key: str, kind: str
) -> None:
    table, metrics = prepared / path_of(kind, key), prepared / path_of(f"metrics/{stage}", key)
    command = _command(stage, key)
    run(prepared, *command)
    undisturbed, numbers = table.read_bytes(), metrics.read_bytes()
    first = _progress(prepared, stage, key)
    assert first["reused"] == 0
    table.unlink()
    kept = _kill_in_the_middle(prepared, command, batches=3)
    assert not table.exists()
    run(prepared, *command)
    again = _progress(prepared, stage, key)
    assert table.read_bytes() == undisturbed
    assert metrics.read_bytes() == numbers
    assert again["done"] == first["done"]
    assert kept * BATCH_SIZE == again["reused"] > 0
    assert again["amount"] < first["amount"]
    assert not list((prepared / FOLDER).rglob("*.npz"))
