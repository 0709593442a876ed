"""Whole projects for end-to-end tests: a git repository with Rollbook's own dvc.yaml, and settings made small."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from ruamel.yaml import YAML

from rollbook.tables.artifacts import path_of, read_table
from tests.in_process import chain_of
from tests.unit.settings.test_params import SHIPPED_TEXT

ROOT = Path(__file__).parents[2]
COPIED = (
    "pipeline",
    "stages",
    "rescores",
    "dvc.yaml",
    ".dvcignore",
    ".gitignore",
    "pyproject.toml",
)
LEFT_BY_RUNS = shutil.ignore_patterns("__pycache__", "dvc.lock")
BIN = Path(sys.executable).parent
SMALL: dict[str, Any] = {
    "data__evaluation": {"heldout": {"name": "arithmetic", "below": 50, "prompts": 32}},
    "policy__base": {"name": "tiny", "warm_start_steps": 40},
    "recipes__grpo__prepare_prompts__prompts_per_iteration": 24,
    "recipes__grpo__generate_rollouts__group_size": 4,
    "recipes__grpo__update_policy__optimizer_steps": 2,
    "evaluate_policy__samples": 2,
}
"""Settings that make every stage do real work on little data."""

WITHOUT_TORCH = """\
import importlib.abc, sys

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "datasets", "safetensors", "vllm", "peft"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
"""


def environment() -> dict[str, str]:
    """As after `source .venv/bin/activate`, without anything a surrounding DVC or MLflow has set."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DVC_", "MLFLOW_"))
    }
    return {**kept, "PATH": f"{BIN}:{os.environ['PATH']}", "MLFLOW_DISABLE_TELEMETRY": "true"}


def make_project(folder: Path, iterations: int = 2, shrink: bool = True, **changes: Any) -> Path:
    """Makes and commits a project that trains in seconds (unless `shrink` is off).

    `changes` sets values of params.yaml at places (`a__b` for `a.b`).
    """
    folder.mkdir(parents=True)
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=LEFT_BY_RUNS)
        else:
            shutil.copy(source, folder / name)
    (folder / "params.yaml").write_text(SHIPPED_TEXT)
    (folder / ".dvc").mkdir()
    for name in ("config", ".gitignore"):
        shutil.copy(ROOT / ".dvc" / name, folder / ".dvc" / name)
    shutil.copytree(ROOT / ".dvc" / "plots", folder / ".dvc" / "plots")
    (folder / "reports").mkdir()
    edit_params(folder, iterations=chain(iterations), **(SMALL if shrink else {}), **changes)
    git(folder, "init", "--quiet", "--initial-branch=main")
    commit(folder, "A small project")
    return folder


def chain(iterations: int) -> dict[str, dict[str, str]]:
    """`iterations:` of a straight chain under the recipe `grpo`."""
    return chain_of("grpo", [f"i{number:04d}" for number in range(1, iterations + 1)])


def edit_params(folder: Path, **changes: Any) -> None:
    """Sets values of params.yaml at places (`a__b` for `a.b`), keeping the rest."""
    yaml = YAML()
    file = folder / "params.yaml"
    document = yaml.load(file.read_text())
    for place, value in changes.items():
        *parents, last = place.split("__")
        node = document
        for part in parents:
            node = node.setdefault(part, {})
        node[last] = value
    with file.open("w") as stream:
        yaml.dump(document, stream)


def run(
    folder: Path,
    *command: str,
    check: bool = True,
    timeout: float = 600,
    variables: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs a command in the project, with output captured; `variables` are set beside the environment."""
    result = subprocess.run(
        command,
        cwd=folder,
        env={**environment(), **(variables or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert not check or result.returncode == 0, (
        f"{' '.join(command)}\n{result.stdout}\n{result.stderr}"
    )
    return result


def without_torch(folder: Path) -> dict[str, str]:
    """Variables under which no program nor its children can import what the extra `train` installs.

    `folder` is where the module is put that sees to it.
    """
    (folder / "sitecustomize.py").write_text(WITHOUT_TORCH)
    variables = {"PYTHONPATH": str(folder)}
    refused = run(folder, "python", "-c", "import torch", check=False, variables=variables)
    assert "No module named 'torch'" in refused.stderr
    return variables


def repro(folder: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """`dvc repro`."""
    return run(folder, "dvc", "repro", *arguments, check=check)


def stages_run(result: subprocess.CompletedProcess[str]) -> list[str]:
    """Stages whose command ran, in order."""
    lines = result.stdout.splitlines()
    return [line.split("'")[1] for line in lines if line.startswith("Running stage '")]


def table_of(folder: Path, kind: str, key: str) -> pa.Table:
    """A table of the project, `rescores/<name>` for those of a re-score; checked."""
    return read_table(folder / path_of(kind, key), kind)[0]


def store_uri(folder: Path) -> str:
    """Address of the project's own MLflow store."""
    return f"sqlite:///{folder / 'mlflow' / 'mlflow.db'}"


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    result = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return result.stdout


def commit(folder: Path, message: str) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "-m", message)


def output_hashes(folder: Path) -> dict[str, str]:
    """md5 of every output in dvc.lock but run_info, which says what varies."""
    lock = YAML(typ="safe").load((folder / "dvc.lock").read_text())
    return {
        output["path"]: output["md5"]
        for entry in lock["stages"].values()
        for output in entry.get("outs", [])
        if "run_info" not in output["path"]
    }
