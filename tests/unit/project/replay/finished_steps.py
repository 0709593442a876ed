"""Steps run as DVC would run them, only quicker, and replays of them through the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from ruamel.yaml import YAML

from rollbook.cli.main import cli
from rollbook.cli.replay import FOLDER
from rollbook.core.hashing import files_in
from rollbook.core.ids import BASE_KEY
from rollbook.dvc.cache import cached_path
from rollbook.dvc.lock import LOCK_FILE, RESCORES_LOCK_FILE
from rollbook.project.plan import load_stage
from rollbook.project.plan_file import PLAN_FILE, planned_digest
from rollbook.project.replay.stored import dvc_md5
from rollbook.settings.params import read_params

IGNORED = "/artifacts/\n__pycache__\n.dvc/cache\n.dvc/tmp\n"
DVC_CONFIG = "[core]\n    analytics = false\n"


def run_step(stage: str, key: str, rescore: str = "") -> None:
    """Runs a planned step, writes it into its lock file, and puts what it read and made into DVC's cache."""
    declared, params = load_stage(stage), read_params()
    declared = declared.for_rescore(rescore) if rescore else declared
    declared.execute(key)
    name = stage if key == BASE_KEY else f"{stage}@{rescore}{'-' if rescore else ''}{key}"
    digest = planned_digest(json.loads(PLAN_FILE.read_text()), stage, key, rescore)
    entry: dict[str, Any] = {
        "cmd": f"exec python -P -m rollbook.stages.{stage}",
        "deps": [kept(path) for path in declared.input_paths(key, params)],
        "params": {str(PLAN_FILE): {name: digest}},
        "outs": [kept(path) for path in declared.output_paths(key)],
    }
    lock = RESCORES_LOCK_FILE if rescore else LOCK_FILE
    stages = YAML(typ="safe").load(lock.read_text())["stages"] if lock.exists() else {}
    lock.parent.mkdir(exist_ok=True)
    with lock.open("w") as stream:
        yaml = YAML()
        yaml.default_flow_style = False
        yaml.dump({"schema": "2.0", "stages": {**stages, name: entry}}, stream)


def kept(path: Path) -> dict[str, Any]:
    """The file as an entry of dvc.lock; it becomes one file with its object in the cache, as DVC leaves it."""
    md5 = dvc_md5(path)
    cached = cached_path(md5)
    if not cached.exists():
        cached.parent.mkdir(parents=True, exist_ok=True)
        cached.hardlink_to(path)
    size = (
        sum(file.stat().st_size for file in files_in(path))
        if path.is_dir()
        else path.stat().st_size
    )
    return {"path": path.as_posix(), "md5": md5, "size": size}


def replay(*arguments: str) -> Result:
    """The command in the current folder."""
    return CliRunner().invoke(cli, ["replay", *arguments])


def verdict(step: str) -> dict[str, Any]:
    """What the last replay of a single step wrote, with its exit code."""
    content = json.loads((FOLDER / f"{step}.json").read_text())
    [found] = content["steps"]
    return {**found, "exit_code": content["exit_code"]}
