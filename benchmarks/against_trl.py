"""Whole iterations beside TRL's, alternating in one run: SmolLM2, the same prompts, sizes, optimizer and threads.

Rollbook's iterations are those of one `dvc repro`, which stands still while it is TRL's turn: every program, table,
hash, checkpoint and MLflow included. TRL's are optimizer steps of a trainer that stays in memory and keeps nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.smollm2 import EXAMPLE
from benchmarks.tables import markdown, spread
from rollbook.settings.recipe import Recipe
from tests.e2e.projects import ROOT, commit, edit_params, environment, make_project, repro

PAIRS = 5
"""Measured iterations of each; one more goes before, to warm up."""
THREADS = 2
PHASES = ("generation", "update", "all")
TRL_VERSION = "1.16"


@dataclass(frozen=True)
class Cost:
    """One iteration.

    Attributes:
        seconds: of each of `PHASES`.
        tokens: completion tokens.
        peak_mib: largest resident memory of a process.
    """

    seconds: dict[str, float]
    tokens: int
    peak_mib: float


def report(pairs: int = PAIRS) -> str:
    """Tables for float32, bfloat16, float32 without skipping rollouts whose gradient is 0, and the embedded policy."""
    sections = [
        _compared("float32", pairs),
        _compared("bfloat16", pairs),
        _compared("float32", pairs, skip_zero_gradient=False),
        _embedded(pairs),
    ]
    return (
        f"## Beside TRL {TRL_VERSION}\n\nSmolLM2-135M-Instruct, 8 prompts × 8 answers × at most 24 tokens, GRPO "
        "without KL, temperature 0.7, learning rate 1e-5, fused AdamW in float32, no gradient checkpointing, "
        f"{THREADS} threads; {pairs} iterations of each, alternating. Rollbook's are those of one `dvc repro`, with "
        "checkpoint, hashes and MLflow; TRL's keep nothing. Ratios are Rollbook / TRL of neighbouring iterations: "
        "median, smallest and largest.\n\n" + "\n\n".join(sections)
    )


def _compared(precision: str, pairs: int, **update: Any) -> str:
    title = precision + "".join(f", {name}: {str(value).lower()}" for name, value in update.items())
    with TemporaryDirectory() as scratch:
        project = _smollm2(Path(scratch) / "project", precision, pairs + 3, **update)
        return f"### {title}\n\n{_alternating(project, precision, pairs)}"


def _embedded(pairs: int) -> str:
    with TemporaryDirectory() as scratch:
        project = _tiny(Path(scratch) / "project", pairs + 3)
        return (
            "### The embedded policy\n\nThe shipped settings, 256 prompts × 8 answers × at most 8 tokens, with one "
            f"optimizer step and {THREADS} threads.\n\n{_alternating(project, 'float32', pairs)}"
        )


def _alternating(project: Path, precision: str, pairs: int) -> str:
    """A table of one comparison."""
    with _Trl(project, precision, pairs + 1) as trl, _Rollbook(project) as run:
        both = [(trl.step(), run.iteration()) for _ in range(pairs + 1)][1:]
    floor = _floor(project, [own for _, own in both])
    theirs, own = zip(*both, strict=True)
    rows = [
        [
            phase,
            *(f"{_median(each, phase):.1f}" for each in (theirs, own)),
            *(
                f"{statistics.median(cost.tokens / cost.seconds[phase] for cost in each):.0f}"
                for each in (theirs, own)
            ),
            spread([b.seconds[phase] / a.seconds[phase] for a, b in both]),
        ]
        for phase in PHASES
    ]
    memory = [max(cost.peak_mib for cost in each) for each in (theirs, own)]
    rows.append(
        [
            "peak memory, MiB",
            *(f"{each:,.0f}" for each in memory),
            "–",
            "–",
            f"{memory[1] / memory[0]:.2f}",
        ]
    )
    head = ["phase", "TRL, s", "Rollbook, s", "TRL, tokens/s", "Rollbook, tokens/s", "ratio"]
    return f"{markdown(head, rows)}\n\n{floor}"


def _smollm2(folder: Path, precision: str, iterations: int, **update: Any) -> Path:
    """The shipped example."""
    recipe: dict[str, Any] = {"recipes__grpo__update_policy__precision": precision}
    if precision == "bfloat16":
        recipe["recipes__grpo__generate_rollouts__engine__dtype"] = "bfloat16"
    for name, value in update.items():
        recipe[f"recipes__grpo__update_policy__{name}"] = value
    return _project(folder, EXAMPLE, iterations, recipe)


def _tiny(folder: Path, iterations: int) -> Path:
    """The shipped settings."""
    recipe = {"recipes__grpo__update_policy__optimizer_steps": 1}
    return _project(folder, ROOT / "params.yaml", iterations, recipe)


def _project(folder: Path, params: Path, iterations: int, recipe: dict[str, Any]) -> Path:
    """A project with its base policy, that evaluates nothing."""
    make_project(folder, shrink=False)
    shutil.copy(params, folder / "params.yaml")
    edit_params(
        folder,
        iterations={f"i{number:04d}": _item(number) for number in range(1, iterations + 1)},
        runtime__threads=THREADS,
        data__evaluation={},
        **recipe,
    )
    commit(folder, "A project to compare")
    repro(folder, "init_policy")
    return folder


def _item(number: int) -> dict[str, Any]:
    return {
        "previous": f"i{number - 1:04d}",
        "recipe": "grpo",
        "reference": "i0000",
        "evaluate": False,
    }


class _Rollbook:
    """One `dvc repro`, which runs only while an iteration of it is asked for (its fork server waits by itself).

    An iteration is counted from the prompts of one to the prompts of the next: between those all its stages run.
    """

    def __init__(self, project: Path) -> None:
        self._project = project
        self._number = 1
        self._process = subprocess.Popen(
            ["dvc", "repro", "--quiet"],
            cwd=project,
            env=environment(),
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._until_prompts()

    def __enter__(self) -> _Rollbook:
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def iteration(self) -> Cost:
        """One more iteration."""
        number = self._number
        self._number += 1
        started = time.perf_counter()
        os.killpg(self._process.pid, signal.SIGCONT)
        self._until_prompts()
        whole = time.perf_counter() - started
        info = {
            folder.name: json.loads((folder / f"i{number:04d}.json").read_text(encoding="utf-8"))
            for folder in (self._project / "artifacts" / "run_info").iterdir()
            if (folder / f"i{number:04d}.json").exists()
        }
        return Cost(
            {
                "generation": info["generate_rollouts"]["seconds"]["total"],
                "update": info["update_policy"]["seconds"]["total"],
                "all": whole,
            },
            sum(bar["amount"] for bar in info["generate_rollouts"]["progress"]),
            max(each["peak_memory_mb"] for each in info.values()),
        )

    def _until_prompts(self) -> None:
        """Waits for the prompts of the iteration at hand, then lets everything stand still."""
        made = self._project / f"artifacts/run_info/prepare_prompts/i{self._number:04d}.json"
        while not made.exists():
            if self._process.poll() is not None:
                raise RuntimeError(f"`dvc repro` ended with {self._process.returncode}")
            time.sleep(0.01)
        os.killpg(self._process.pid, signal.SIGSTOP)


class _Trl:
    """TRL's trainer in a process of its own, stepped from here."""

    def __init__(self, project: Path, precision: str, steps: int) -> None:
        folder = project.parent
        recipe = Recipe.model_validate(_recipe(project))
        prompts = _prompts(project, recipe.prepare_prompts.prompts_per_iteration * steps)
        settings = {
            "model": str(project / "artifacts/policies/i0000"),
            "prompts": prompts,
            "steps": steps,
            "rows": recipe.prepare_prompts.prompts_per_iteration
            * recipe.generate_rollouts.group_size,
            "group_size": recipe.generate_rollouts.group_size,
            "max_completion_tokens": recipe.generate_rollouts.max_completion_tokens,
            "temperature": recipe.generate_rollouts.temperature,
            "learning_rate": recipe.update_policy.learning_rate,
            "precision": precision,
            "threads": THREADS,
            "scratch": str(folder / "trl"),
        }
        file = folder / "trl.json"
        file.write_text(json.dumps(settings), encoding="utf-8")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.trl_steps", str(file)],
            env={**environment(), "OMP_NUM_THREADS": str(THREADS), "HF_HUB_OFFLINE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(folder / "trl.log").open("w"),
            text=True,
        )
        self._log = folder / "trl.log"
        self._read("ready")

    def __enter__(self) -> _Trl:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def step(self) -> Cost:
        """One optimizer step."""
        assert self._process.stdin is not None
        self._process.stdin.write("step\n")
        self._process.stdin.flush()
        found = json.loads(self._read())
        seconds = {name: found[name] for name in ("generation", "update")}
        return Cost({**seconds, "all": found["seconds"]}, found["tokens"], found["peak_mib"])

    def _read(self, wanted: str = "") -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith(wanted or "{"):
            raise RuntimeError(f"TRL ended: {self._log.read_text(encoding='utf-8')[-2000:]}")
        return line


def _prompts(project: Path, count: int) -> list[dict[str, Any]]:
    """Training prompts as TRL takes them."""
    from rollbook.tables.artifacts import read_table

    table, _ = read_table(project / "artifacts/data/train.parquet", "data")
    rows = table.select(["messages", "reference_answer"]).slice(0, count).to_pylist()
    return [
        {"prompt": row["messages"], "reference_answer": row["reference_answer"]} for row in rows
    ]


def _recipe(project: Path) -> dict[str, Any]:
    from ruamel.yaml import YAML

    document = YAML(typ="safe").load((project / "params.yaml").read_text(encoding="utf-8"))
    return dict(document["recipes"]["grpo"])


def _floor(project: Path, costs: Sequence[Cost]) -> str:
    """What the multiplications alone would take at the speed that matrices of the model's size reach here and now."""
    from rollbook import load

    torch.set_num_threads(THREADS)
    config = json.loads((project / "artifacts/policies/i0000/config.json").read_text())
    width, inner = config["hidden_size"], config["intermediate_size"]
    head = width * config["vocab_size"]
    kv = config["num_key_value_heads"] * config["head_dim"]
    body = config["num_hidden_layers"] * (2 * width * width + 2 * width * kv + 3 * width * inner)
    with contextlib.chdir(project):
        table = load("rollouts", join=("prompts", "updates"))
    last = table.filter(table["iteration"] == table["iteration"].max())
    completion = last["completion_token_ids"].list.len()
    distinct = last.unique("prompt_id")["prompt_token_ids"].list.len().sum()
    generated = distinct * 2 * body + completion.sum() * 2 * (body + head)
    trained = last.filter(last["trained"])
    own = trained["completion_token_ids"].list.len().sum()
    prompts = trained.unique("prompt_id")["prompt_token_ids"].list.len().sum()
    updated = 3 * 2 * ((own + prompts) * body + own * head)
    speed = {
        name: _speed(width, inner, rows) for name, rows in (("generation", 64), ("update", 512))
    }
    floor = {"generation": generated / speed["generation"], "update": updated / speed["update"]}
    shown = ", ".join(
        f"{name} {seconds:.1f} s at {speed[name] / 1e9:.0f} GFLOP/s"
        for name, seconds in floor.items()
    )
    took = costs[-1].seconds
    return (
        f"Floor of the last iteration, multiplications alone at the speed of `linear` in float32: {shown}; it took "
        f"{took['generation']:.1f} s and {took['update']:.1f} s, programs and imports included."
    )


def _speed(width: int, inner: int, rows: int) -> float:
    """Floating-point operations per second of a matrix product of the model's size, best of several."""
    given, weights = torch.randn(rows, width), torch.randn(inner, width)
    best = float("inf")
    for _ in range(50):
        started = time.perf_counter()
        torch.nn.functional.linear(given, weights)
        best = min(best, time.perf_counter() - started)
    return 2 * rows * width * inner / best


def _median(costs: Sequence[Cost], phase: str) -> float:
    return statistics.median(cost.seconds[phase] for cost in costs)


if __name__ == "__main__":
    print(report(*map(int, sys.argv[1:])))
