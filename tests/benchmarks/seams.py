"""What the seams cost: for every stage of a real run, from process start to first row, to first batch, and in all."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipeline.plan import ITERATION_STAGES
from tests.benchmarks.tables import markdown
from tests.e2e.projects import environment, make_project, repro

ITERATIONS = 4
LIGHT = ("prepare_prompts", "score_rollouts", "measure_logprobs", "compute_advantages")


def report() -> str:
    """Trains the shipped settings for a few iterations and tables where the seconds go."""
    with TemporaryDirectory() as folder:
        project = make_project(Path(folder) / "project", shrink=False, iterations=ITERATIONS)
        started = time.perf_counter()
        repro(project)
        whole = time.perf_counter() - started
        started = time.perf_counter()
        repro(project)
        again = time.perf_counter() - started
        stages = {name: list(_run_infos(project, name)) for name in ITERATION_STAGES}
        tracked = _track_seconds(project)
    inside = sum(info["seconds"]["total"] for infos in stages.values() for info in infos)
    rows = [_row(name, infos, whole) for name, infos in stages.items()]
    rows.append(
        ["track_iteration", "–", "–", f"{tracked:.2f}", f"{tracked * ITERATIONS / whole:.0%}"]
    )
    between = whole - inside - tracked * ITERATIONS
    rows.append(
        [
            "DVC, check, base policy, report",
            "–",
            "–",
            f"{between / ITERATIONS:.2f}",
            f"{between / whole:.0%}",
        ]
    )
    table = markdown(
        ["stage", "to first row", "to first batch", "in all", "share of the run"], rows
    )
    return (
        f"## Seams\n\n`dvc repro` of {ITERATIONS} iterations of the shipped recipe: {whole:.0f} s; a second one, "
        f"which runs only `check`: {again:.1f} s ({again / whole:.0%}). Seconds per iteration, median:\n\n{table}\n\n"
        "*To first row*: from process start until all inputs are read and checked. *To first batch*: until the first "
        "batch of real work is done (imports of torch and the model's code, loading the policy, the batch itself).\n\n"
        f"{_imports()}"
    )


def _row(name: str, infos: list[dict[str, Any]], whole: float) -> list[str]:
    first_row = statistics.median(
        info["seconds"]["startup"] + info["seconds"]["inputs"] for info in infos
    )
    batches = [
        bar["first_at"]
        for info in infos
        for bar in info["progress"][:1]
        if bar["first_at"] is not None
    ]
    total = statistics.median(info["seconds"]["total"] for info in infos)
    share = sum(info["seconds"]["total"] for info in infos) / whole
    first_batch = f"{statistics.median(batches):.2f}" if batches and name not in LIGHT else "–"
    return [name, f"{first_row:.2f}", first_batch, f"{total:.2f}", f"{share:.0%}"]


def _run_infos(project: Path, stage: str) -> Iterator[dict[str, Any]]:
    for path in sorted((project / "artifacts" / "run_info" / stage).glob("i*.json")):
        if path.stem != "i0000":
            yield json.loads(path.read_text())


def _track_seconds(project: Path) -> float:
    command = ["python", "-m", "stages.track_iteration", "--iteration", f"i{ITERATIONS:04d}"]
    times = []
    for _ in range(3):
        started = time.perf_counter()
        subprocess.run(command, cwd=project, env=environment(), check=True, capture_output=True)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def _imports() -> str:
    """Import times of what stages load, each in a fresh interpreter, median of three."""
    statements = {
        "nothing": "pass",
        "pipeline.stage (pydantic, pyarrow, numpy)": "import pipeline.stage",
        "… and pandera as stages import it": "import stages, pipeline.stage",
        "… and pandera as it imports itself": "import pipeline.stage, pandera.pyarrow, polars, hypothesis",
        "torch": "import torch",
        "torch and transformers' Llama": "import torch\nfrom transformers import LlamaForCausalLM",
        "mlflow": "import mlflow",
    }
    rows = []
    for name, code in statements.items():
        times = []
        for _ in range(3):
            started = time.perf_counter()
            subprocess.run(["python", "-c", code], env=environment(), check=True)
            times.append(time.perf_counter() - started)
        rows.append([re.sub(r"^…", "…", name), f"{statistics.median(times):.2f}"])
    return markdown(["import", "seconds"], rows)
