"""A project with two commits of finished runs, made without training: real git, small tables, a cache as DVC has it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from rollbook.dvc.cache import cached_path
from rollbook.dvc.lock import lock_of
from rollbook.tables.artifacts import write_table
from tests.builders import prompt_rows, table, with_greedy
from tests.unit.settings.test_params import ROOT
from tests.unit.views.mlflow.project import Project

FIRST = [["3", "3"], ["5", "4"], ["1", "7"], ["1", "1"]]
"""Sampled answers to 1+2=, 2+3=, 3+4= and 4+5= in the commit tagged `first`."""
SECOND = [["3", "3"], ["4", "4"], ["7", "7"], ["9", "9"], ["11", "\x1b[31m1"]]
"""Those in the commit after it, and to 5+6=."""
GENTLER = {"extends": "grpo", "update_policy": {"learning_rate": 1e-4}}


def make(folder: Path) -> None:
    """Three iterations under the tag `first`; then i0002 and i0003 under a higher learning rate, and a branch.

    The branch `own0003` follows i0002 under the recipe `gentler`. The second commit is also an experiment, `faster`.
    """
    with contextlib.chdir(folder):
        shutil.copy(ROOT / ".gitignore", ".gitignore")
        Path(".dvc").mkdir()
        Path(".dvc/config").write_text("[core]\n    analytics = false\n")
        Path(".dvc/.gitignore").write_text("/tmp\n/cache\n/config.local\n")
        git("init", "--quiet", "--initial-branch=main")
        project = Project(3)
        project.finish("i0001", "i0002", "i0003")
        for key in ("i0000", "i0001", "i0002", "i0003"):
            evaluate(key, FIRST)
        _keep("first")
        git("tag", "first")

        project.configure(
            {"i0001": "i0000", "i0002": "i0001", "i0003": "i0002", "own0003": "i0002"}
        )
        edit(seed=1, recipes__grpo__update_policy__learning_rate=1e-3, recipes__gentler=GENTLER)
        edit(iterations__own0003__recipe="gentler")
        project.change("update_policy", "i0002")
        project.finish("i0002", "i0003", "own0003")
        for key in ("i0002", "i0003", "own0003"):
            evaluate(key, SECOND)
        evaluate("i0002", FIRST)
        _keep("second")
        commit = git("rev-parse", "HEAD").strip()
        git("update-ref", f"refs/exps/{commit[:2]}/{commit[2:]}/faster", commit)


def evaluate(key: str, answers: Sequence[Sequence[str]]) -> None:
    """Writes the evaluation of a policy: sampled answers to the first prompts, and a greedy 0 to each."""
    prompts = prompt_rows(len(answers), key)
    wanted = {row["prompt_id"]: row for row in prompts}
    rows = []
    for row in with_greedy(prompts, answers, ["0"] * len(answers)):
        prompt = wanted[row["prompt_id"]]
        reward = float(row["text"] == prompt["reference_answer"])
        extra: Mapping[str, Any] = {
            "set": "heldout",
            "prompt": prompt["prompt"],
            "reference_answer": prompt["reference_answer"],
            "reward": reward,
            "reward_numeric_answer": reward,
            "error": None,
            "step_rewards": None,
        }
        rows.append({**row, **extra})
    write_table(table("evaluations", rows), "evaluations", key)


def edit(**changes: Any) -> None:
    """Sets values of params.yaml at places (`a__b` for `a.b`)."""
    yaml = YAML()
    content = yaml.load(Path("params.yaml").read_text())
    for place, value in changes.items():
        *parents, last = place.split("__")
        node = content
        for part in parents:
            node = node[part]
        node[last] = value
    with Path("params.yaml").open("w") as stream:
        yaml.dump(content, stream)


def git(*arguments: str) -> str:
    """Runs git here; what it says."""
    identity = ("-c", "user.name=Test", "-c", "user.email=test@example.org")
    done = subprocess.run(
        ["git", *identity, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout


def _keep(message: str) -> None:
    """Puts what lies here into dvc.lock and DVC's cache, as `dvc repro` would, only quicker, and commits."""
    from rollbook.stages.report import report

    report()
    lines = []
    for file in sorted(Path("artifacts").glob("*/*.parquet")):
        lines += _entry(file, file.read_bytes(), "")
    for folder in sorted(Path("artifacts/policies").iterdir()):
        listed = [
            {"md5": _cached(file.read_bytes()), "relpath": file.name}
            for file in sorted(folder.iterdir())
        ]
        lines += _entry(folder, json.dumps(listed).encode(), ".dir")
    Path("dvc.lock").write_text(lock_of(f"{line}\n" for line in lines))
    git("add", "--all")
    git("commit", "--quiet", "-m", message)


def _entry(path: Path, content: bytes, suffix: str) -> list[str]:
    """The lock entry of a stage that makes just this."""
    md5 = _cached(content, suffix)
    stage = f"  {path.parent.name}@{path.stem}:"
    out = [
        f"    - path: {path}",
        "      hash: md5",
        f"      md5: {md5}",
        f"      size: {len(content)}",
    ]
    return [stage, "    cmd: true", "    outs:", *out]


def _cached(content: bytes, suffix: str = "") -> str:
    md5 = hashlib.md5(content).hexdigest() + suffix
    place = cached_path(md5)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)
    return md5
