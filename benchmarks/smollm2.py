"""SmolLM2 learns sums on two processor cores: the shipped example with two seeds; writes reports/smollm2.md.

`python -m benchmarks smollm2` trains both, each by one `dvc repro` in a project of its own, seals them and writes
the report; it takes half an hour or so. `python -m benchmarks smollm2 FOLDER FOLDER` reports projects that are
trained already, one per seed, and seals them if they are not.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

import rollbook.settings.examples
from benchmarks.tables import markdown
from rollbook import load
from rollbook.project.plan_file import ITERATION_STAGES
from rollbook.settings.params import read_params
from rollbook.tables.artifacts import read_json
from tests.e2e.projects import ROOT, commit, edit_params, environment, make_project, repro

REPORT = ROOT / "reports" / "smollm2.md"
EXAMPLE = Path(rollbook.settings.examples.__file__).parent / "smollm2.yaml"
SEEDS = (0, 1)
SEALED, KEPT = "i0001-i0019", "every:10"
SHOWN = 6
"""Prompts whose answers are shown."""
LONGEST = 110
"""Characters of an answer that are shown."""
GIB = 1 << 30


@dataclass(frozen=True)
class Run:
    """One trained project.

    Attributes:
        seed: of params.yaml.
        evaluations: metrics of every evaluated policy, by iteration.
        rewards: mean training reward by iteration.
        infos: run_info by stage, in the order of iterations; without the base policy's.
        minutes: from the first stage of the run to the end of the last evaluation.
        disk: bytes of the project before and after sealing; None: it was sealed already.
        answers: prompt, reference answer and the greedy answers of the first, middle and last policy.
    """

    seed: int
    evaluations: dict[str, dict[str, Any]]
    rewards: dict[str, float]
    infos: dict[str, list[dict[str, Any]]]
    minutes: float
    disk: tuple[int | None, int]
    answers: list[list[str]]


def main(folders: Sequence[str]) -> None:
    """Writes the report of the projects in `folders`; without, it trains them first."""
    with contextlib.ExitStack() as stack:
        if folders:
            projects = [Path(folder).resolve() for folder in folders]
        else:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            projects = [_trained(scratch / f"seed{seed}", seed) for seed in SEEDS]
        REPORT.write_text(_report([_read(project) for project in projects]), encoding="utf-8")
    print(f"wrote {REPORT}")


def _trained(folder: Path, seed: int) -> Path:
    make_project(folder, shrink=False)
    shutil.copy(EXAMPLE, folder / "params.yaml")
    edit_params(folder, seed=seed)
    commit(folder, "SmolLM2")
    repro(folder)
    return folder


def _read(project: Path) -> Run:
    with contextlib.chdir(project):
        params = read_params()
        whole = None if params.sealed else _bytes(project)
        if not params.sealed:
            command = ["rollbook", "seal", SEALED, "--keep", KEPT]
            subprocess.run(command, env=environment(), check=True)
        keys = list(read_params().every_iteration)
        evaluations = {
            key: numbers
            for key in ("i0000", *keys)
            if (numbers := read_json(Path(f"artifacts/metrics/evaluate_policy/{key}.json")))
        }
        infos = {
            stage: [read_json(Path(f"artifacts/run_info/{stage}/{key}.json")) for key in keys]
            for stage in ITERATION_STAGES
        }
        scores = [read_json(Path(f"artifacts/metrics/score_rollouts/{key}.json")) for key in keys]
        rewards = {key: item["reward"] for key, item in zip(keys, scores, strict=True)}
        first = read_json(Path("artifacts/run_info/prepare_data/i0000.json"))
        seconds = _finished(infos["evaluate_policy"][-1]) - _finished(first)
        minutes = (seconds + first["seconds"]["total"]) / 60
        answers = _answers(_three(list(evaluations)))
        return Run(
            params.seed, evaluations, rewards, infos, minutes, (whole, _bytes(project)), answers
        )


def _three(keys: list[str]) -> list[str]:
    return [keys[0], keys[len(keys) // 2], keys[-1]]


def _answers(keys: Sequence[str]) -> list[list[str]]:
    """Prompt, reference answer and the greedy answer of each policy, for the first prompts by id."""
    messages = pl.read_parquet("artifacts/data/evaluation.parquet").select("prompt_id", "messages")
    table = load("evaluations").filter(pl.col("greedy") & pl.col("iteration").is_in(keys))
    found: dict[str, dict[str, str]] = {}
    for row in table.join(messages, on="prompt_id").sort("prompt_id").iter_rows(named=True):
        entry = found.setdefault(row["prompt_id"], {})
        entry["prompt"] = row["messages"][-1]["content"]
        entry["right"] = row["reference_answer"]
        entry[row["iteration"]] = " ".join(row["text"].split())[:LONGEST]
    columns = ("prompt", "right", *keys)
    return [[entry[name] for name in columns] for entry in list(found.values())[:SHOWN]]


def _report(runs: Sequence[Run]) -> str:
    environment_now = runs[0].infos["update_policy"][-1]["environment"]
    packages = ", ".join(
        f"{name} {version}" for name, version in environment_now["packages"].items()
    )
    parts = [
        "# SmolLM2 on two processor cores\n\n"
        "`rollbook start smollm2 && dvc repro`: SmolLM2-135M-Instruct, plain GRPO in float32, 8 prompts × 8 answers × "
        "at most 24 tokens an iteration, reward 1 for the right last number, learning rate 1e-5; 96 held-out sums.\n\n"
        f"Measured {datetime.date.today().isoformat()} on {environment_now['cpu']}, {os.cpu_count()} processors, "
        f"{packages}. `python -m benchmarks smollm2` makes this page.",
        *_curves(runs),
        *_times(runs),
        *_samples(runs),
    ]
    return "\n\n".join(parts) + "\n"


def _curves(runs: Sequence[Run]) -> Iterator[str]:
    yield (
        "## Accuracy\n\nOn the held-out sums. *Greedy*: the last number of the greedy answer is right, with 95 % "
        "interval. *Just the number*: the greedy answer is the number and nothing else, as the prompt "
        "asks; no reward says so. "
        "*Sampled*: one answer at temperature 1."
    )
    name = "eval/heldout"
    for run in runs:
        rows = [
            [
                key,
                _interval(numbers, f"{name}/greedy"),
                f"{numbers[f'{name}/greedy_strict']:.2f}",
                f"{numbers[f'{name}/mean_at_1']:.2f}",
                f"{run.rewards[key]:.2f}" if key in run.rewards else "",
            ]
            for key, numbers in run.evaluations.items()
        ]
        head = ["policy", "greedy", "just the number", "sampled", "training reward"]
        yield f"Seed {run.seed}:\n\n{markdown(head, rows)}"
    first, last = (
        statistics.mean(list(run.evaluations.values())[place][f"{name}/greedy"] for run in runs)
        for place in (0, -1)
    )
    yield f"Mean of the seeds, greedy: {first:.2f} → **{last:.2f}**."


def _interval(numbers: dict[str, Any], name: str) -> str:
    return f"{numbers[name]:.2f} [{numbers[f'{name}_low']:.2f}, {numbers[f'{name}_high']:.2f}]"


def _times(runs: Sequence[Run]) -> Iterator[str]:
    rows = [
        [
            stage,
            *(f"{_median_seconds(run.infos[stage], 'total'):.1f}" for run in runs),
            *(f"{sum(info['seconds']['total'] for info in run.infos[stage]):.0f}" for run in runs),
        ]
        for stage in ITERATION_STAGES
    ]
    inside = [
        sum(info["seconds"]["total"] for infos in run.infos.values() for info in infos)
        for run in runs
    ]
    rows.append(
        [
            "DVC, MLflow, data, base policy and its evaluation",
            *("" for _ in runs),
            *(f"{60 * run.minutes - own:.0f}" for run, own in zip(runs, inside, strict=True)),
        ]
    )
    rows.append(["**in all**", *("" for _ in runs), *(f"{60 * run.minutes:.0f}" for run in runs)])
    head = [
        "stage",
        *(f"seed {run.seed}, median" for run in runs),
        *(f"seed {run.seed}, sum" for run in runs),
    ]
    minutes = " and ".join(f"{run.minutes:.1f}" for run in runs)
    disk = " and ".join(f"{run.disk[1] / GIB:.1f} GiB" for run in runs)
    before = " and ".join(f"{run.disk[0] / GIB:.1f} GiB" for run in runs if run.disk[0])
    yield (
        f"## Time and disk\n\n{minutes} minutes for 20 iterations and five evaluations. Seconds:\n\n"
        f"{markdown(head, rows)}\n\nOn disk after `rollbook seal {SEALED} --keep {KEPT}`: {disk} (before: {before}), "
        "policies, optimizer states and DVC's cache included."
    )


def _samples(runs: Sequence[Run]) -> Iterator[str]:
    run = runs[0]
    keys = _three(list(run.evaluations))
    rows = [[_shown(cell) for cell in row] for row in run.answers]
    head = ["prompt", "right", *(f"policy {key}" for key in keys)]
    yield f"## Answers\n\nGreedy answers to the first held-out prompts, seed {run.seed}.\n\n{markdown(head, rows)}"


def _shown(text: str) -> str:
    return text.replace("|", "\\|") or "(nothing)"


def _median_seconds(infos: Sequence[dict[str, Any]], lap: str) -> float:
    return statistics.median(info["seconds"][lap] for info in infos)


def _finished(info: dict[str, Any]) -> float:
    return datetime.datetime.fromisoformat(info["finished"]).timestamp()


def _bytes(folder: Path) -> int:
    """What a folder takes on the disk; files with several names count once."""
    seen: dict[tuple[int, int], int] = {}
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink() and ".venv" not in path.parts:
            stat = path.stat()
            seen[stat.st_dev, stat.st_ino] = stat.st_blocks * 512
    return sum(seen.values())
