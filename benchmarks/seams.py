"""What the seams cost: for every stage of a real run, from process start to first row, to first batch, and in all."""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.tables import markdown
from rollbook.project.plan_file import ITERATION_STAGES
from tests.e2e.projects import environment, make_project, output_hashes, repro

ITERATIONS = 4
LIGHT = ("prepare_prompts", "score_rollouts", "measure_logprobs", "compute_advantages")


def report() -> str:
    """Trains the shipped settings for a few iterations, with and without fork server, and tables where time goes."""
    with TemporaryDirectory() as folder:
        runs = {
            served: _run(Path(folder) / f"fork_server_{served}", served) for served in (True, False)
        }
    served, alone = runs[True], runs[False]
    rows = [
        _row(name, served.stages[name], alone.stages[name], served.whole) for name in served.stages
    ]
    rows.append(
        [
            "track_iteration, DVC, check, report",
            "",
            "",
            f"{served.between:.2f}",
            f"{alone.between:.2f}",
            f"{served.between * ITERATIONS / served.whole:.0%}",
        ]
    )
    head = ["stage", "to first row", "to first batch", "in all", "without fork server", "share"]
    return (
        f"## Seams\n\n`dvc repro` of {ITERATIONS} iterations of the shipped recipe: {served.whole:.0f} s, and "
        f"{alone.whole:.0f} s with `runtime.fork_server: false` (ratio {served.whole / alone.whole:.2f}; data and base "
        "policy, made by both the same way, are left out; the same bytes: "
        f"{'yes' if served.bytes_made == alone.bytes_made else 'NO'}). A second one, which runs only `check`: "
        f"{served.again:.1f} s. Seconds per iteration, median:\n\n{markdown(head, rows)}\n\n"
        "*To first row*: from the start of the process or fork until all inputs are read and checked. *To first "
        "batch*: until the first batch of real work is done (imports of torch and of the model, loading the policy, "
        f"the batch itself). The first iteration starts the server and waits for its own imports.\n\n{_imports()}"
    )


@dataclass(frozen=True)
class _Run:
    """One training run.

    Attributes:
        whole: seconds of its `dvc repro`.
        again: of another one, which finds nothing to do.
        stages: run_info of every iteration, by stage.
        between: seconds per iteration that are in no stage with run_info.
        bytes_made: md5 of every output but run_info, by path.
    """

    whole: float
    again: float
    stages: dict[str, list[dict[str, Any]]]
    between: float
    bytes_made: dict[str, str]


def _run(project: Path, fork_server: bool) -> _Run:
    make_project(project, shrink=False, iterations=ITERATIONS, runtime__fork_server=fork_server)
    repro(project, "evaluate_base")
    started = time.perf_counter()
    repro(project)
    whole = time.perf_counter() - started
    started = time.perf_counter()
    repro(project)
    again = time.perf_counter() - started
    stages = {name: list(_run_infos(project, name)) for name in ITERATION_STAGES}
    inside = sum(info["seconds"]["total"] for infos in stages.values() for info in infos)
    return _Run(whole, again, stages, (whole - inside) / ITERATIONS, output_hashes(project))


def _row(
    name: str, infos: list[dict[str, Any]], alone: list[dict[str, Any]], whole: float
) -> list[str]:
    first_row = statistics.median(
        info["seconds"]["startup"] + info["seconds"]["inputs"] for info in infos
    )
    batches = [
        bar["first_at"]
        for info in infos
        for bar in info["progress"][:1]
        if bar["first_at"] is not None
    ]
    total, other = (
        statistics.median(info["seconds"]["total"] for info in each) for each in (infos, alone)
    )
    share = sum(info["seconds"]["total"] for info in infos) / whole
    first_batch = f"{statistics.median(batches):.2f}" if batches and name not in LIGHT else "–"
    return [
        name,
        f"{first_row:.2f}",
        first_batch,
        f"{total:.2f}",
        f"{other:.2f}",
        f"{share:.0%}",
    ]


def _run_infos(project: Path, stage: str) -> Iterator[dict[str, Any]]:
    for path in sorted((project / "artifacts" / "run_info" / stage).glob("i*.json")):
        if path.stem != "i0000":
            yield json.loads(path.read_text())


def _imports() -> str:
    """Import times of what stages load, each in a fresh interpreter, median of three."""
    statements = {
        "nothing": "pass",
        "rollbook.project.stage (pydantic, pyarrow, numpy)": "import rollbook.project.stage",
        "… and pandera as stages import it": "import rollbook.stages, rollbook.project.stage",
        "… and pandera as it imports itself": "import rollbook.project.stage, pandera.pyarrow, polars, hypothesis",
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
        rows.append([name, f"{statistics.median(times):.2f}"])
    return markdown(["import", "seconds"], rows)
