"""What a finished stage costs beside its own work as a run gets longer: DVC writes dvc.lock anew, stages read params.

A lock file is made from dvc.yaml as a run of that length has it, and DVC's own `Stage.dump` writes an entry into it.
`python -m benchmarks.sealing` prints the table.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from benchmarks.tables import markdown
from rollbook.core.ids import PARAMS_FILE
from rollbook.core.yaml import read_yaml
from rollbook.project.plan_file import ITERATION_STAGES
from rollbook.project.sealing import Sealing, definitions_of
from rollbook.settings.params import parse_params, read_params
from rollbook.settings.sealed import files_of
from rollbook.tables.artifacts import write_json
from tests.e2e.projects import ROOT, chain, edit_params

PART = 10
"""Iterations to a sealed part."""
CASES = ((10, 0), (200, 0), (200, 190))
"""Iterations in all, and sealed ones of them."""
REPEATS = 3
MD5 = "0123456789abcdef" * 2


def report(cases: Sequence[tuple[int, int]] = CASES) -> str:
    """The table: a row per length of the run, the ratios against the first."""
    with tempfile.TemporaryDirectory() as folder:
        places = [
            _project(Path(folder) / f"{total}-{sealed}", total, sealed) for total, sealed in cases
        ]
        measured = [_seconds(place) for place in places]
    base = sum(measured[0])
    rows = [
        (
            f"{total}, {sealed} sealed",
            f"{len(lock):,}",
            f"{1000 * writing:.0f}",
            f"{1000 * reading:.0f}",
            f"{(writing + reading) / base:.2f}",
        )
        for (total, sealed), (writing, reading), lock in zip(
            cases, measured, [_lock_lines(total - sealed) for total, sealed in cases], strict=True
        )
    ]
    head = (
        "iterations",
        "lines of dvc.lock",
        "DVC writes it, ms",
        "a stage reads params, ms",
        "ratio",
    )
    return f"## Length of a run: cost per finished stage\n\n{markdown(head, rows)}"


def _project(folder: Path, total: int, sealed: int) -> Path:
    """A project of `total` iterations, the first `sealed` of them sealed, with a lock file and no artifacts."""
    (folder / ".dvc").mkdir(parents=True)
    (folder / ".dvc" / "config").write_text("[core]\n    no_scm = true\n    analytics = false\n")
    for name in ("dvc.yaml", ".dvcignore", "params.yaml"):
        shutil.copy(ROOT / name, folder / name)
    iterations = chain(total)
    with contextlib.chdir(folder):
        params = parse_params({**read_yaml(PARAMS_FILE), "iterations": iterations})
        keys = list(iterations)
        plan = {key: dict.fromkeys(ITERATION_STAGES, MD5) for key in keys}
        for start in range(0, sealed, PART):
            part = keys[start : start + PART]
            name = f"{part[0]}-{part[-1]}"
            definitions, _, outputs = files_of(name)
            write_json(definitions_of(Sealing(name, part, part[:-1]), params, plan), definitions)
            outputs.write_text("wdir: ..\nouts: []\n")
    edit_params(folder, iterations={key: iterations[key] for key in keys[sealed:]})
    (folder / "dvc.lock").write_text("\n".join([*_lock_lines(total - sealed), ""]))
    return folder


def _lock_lines(count: int) -> list[str]:
    """A lock file as long as that of `count` iterations."""
    stages = YAML(typ="safe").load((ROOT / "dvc.yaml").read_text())["stages"]
    lines = ["schema: '2.0'", "stages:"]
    for name, said in stages.items():
        asked: dict[str, Any] = said.get("do", said)
        for number in range(count) if "do" in said else [None]:
            lines += _entry(name if number is None else f"{name}@i{10**3 + number:04d}", asked)
    return lines


def _entry(name: str, asked: dict[str, Any]) -> list[str]:
    lines = [f"  {name}:", f"    cmd: {asked['cmd']}"]
    for section in ("deps", "outs"):
        if paths := [path for path in asked.get(section, []) if isinstance(path, str)]:
            lines.append(f"    {section}:")
            for path in paths:
                shown = path.replace("${key}", name[-5:]).replace("${item.previous}", "i0000")
                lines += [
                    f"    - path: {shown}",
                    "      hash: md5",
                    f"      md5: {MD5}",
                    "      size: 1",
                ]
    return lines


def _seconds(folder: Path) -> tuple[float, float]:
    """Median seconds of writing an entry into dvc.lock, and of reading params.yaml with what is sealed."""
    from dvc.repo import Repo

    with contextlib.chdir(folder):
        stage = Repo().stage.load_one(name=f"prepare_prompts@{list(read_params().iterations)[-1]}")
        writing = _median(lambda: stage.dump(update_pipeline=False))
        return writing, _median(read_params)


def _median(step: Callable[[], Any]) -> float:
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        step()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


if __name__ == "__main__":
    print(report())
