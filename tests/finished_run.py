"""A run as `dvc repro` leaves it, in seconds: the stages' own programs in this process, and DVC's lock file and cache.

Two iterations, a branch off the first that measures a reference and rewards otherwise, and a re-score.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from rollbook.core.ids import BASE_KEY
from rollbook.dvc.cache import cached_path
from rollbook.dvc.lock import LOCK_FILE, output_md5s
from rollbook.project.plan import load_stage, make_plan
from rollbook.project.plan_file import PLAN_FILE, RESCORE_STAGE
from rollbook.project.run.currency import steps_of
from rollbook.settings.params import read_params
from rollbook.tables.artifacts import write_json
from tests.unit.settings.test_params import ROOT, shipped

KEYS = ("i0001", "i0002", "own0002")
HARDLINKS = "[core]\n    no_scm = true\n    analytics = false\n[cache]\n    type = hardlink,copy\n"
REWARD = (
    "def varied(completions, **kwargs):\n"
    "    return [len(set(each[0]['content'])) / 8 for each in completions]\n"
)
"""Differs between answers of a policy that has learned nothing."""
HOSTILE = 'even "#1" <b>_x_</b>'
"""A reward's label that would break a graph, or a page."""


def settings() -> dict[str, Any]:
    """params.yaml of the run."""
    raw = shipped(
        data__train=[{"name": "arithmetic", "below": 6}],
        data__evaluation={"heldout": {"name": "arithmetic", "below": 6, "prompts": 4}},
        policy__base={"name": "tiny", "warm_start_steps": 4, "warm_start_batch": 8},
        recipes__grpo__prepare_prompts={"prompts_per_iteration": 4},
        recipes__grpo__generate_rollouts__group_size=4,
        recipes__grpo__score_rollouts__rewards=[_own({})],
        recipes__grpo__update_policy__optimizer_steps=2,
        evaluate_policy__samples=2,
    )
    raw["recipes"]["own"] = {
        "extends": "grpo",
        "score_rollouts": {"rewards": [_own({"label": HOSTILE, "weight": 0.5})]},
        "update_policy": {"loss": {"name": "grpo", "kl_coef": 0.1}},
    }
    raw["rescores"] = {"other": {"recipe": "own"}}
    raw["iterations"] = {
        "i0001": {"previous": BASE_KEY, "recipe": "grpo", "reference": BASE_KEY},
        "i0002": {"previous": "i0001", "recipe": "grpo", "reference": BASE_KEY},
        "own0002": {"previous": "i0001", "recipe": "own", "reference": BASE_KEY},
    }
    return raw


def _own(more: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": "function", "path": "my_rewards.py:varied", **more}


def make(folder: Path, raw: Mapping[str, Any] | None = None) -> Path:
    """Runs everything below an empty folder; `raw` is another params.yaml than that of `settings`."""
    from dvc.repo import Repo

    with contextlib.chdir(folder):
        Path("my_rewards.py").write_text(REWARD)
        write_settings(settings() if raw is None else raw)
        for name in ("dvc.yaml", "rescores/dvc.yaml", ".dvcignore"):
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, name)
        Path(".dvc").mkdir()
        Path(".dvc/config").write_text(HARDLINKS)
        params = read_params()
        write_json(make_plan(params), PLAN_FILE)
        for name, key in steps_of(params):
            load_stage(name).execute(key)
        for name, key in itertools.product(params.rescores, params.iterations):
            load_stage(RESCORE_STAGE).for_rescore(name).execute(key)
        from rollbook.stages.report import report

        report()
        Repo().commit(force=True)
    return folder


def write_settings(raw: Mapping[str, Any]) -> None:
    """Writes params.yaml below the current folder."""
    with Path("params.yaml").open("w") as stream:
        YAML().dump(raw, stream)


def copy(run: Path, to: Path) -> Path:
    """A copy to change at will: hard links between workspace and cache stay what they are."""
    subprocess.run(["cp", "-a", str(run), str(to)], check=True)
    return to


def in_cache(path: str) -> Path:
    """Where DVC's cache keeps an output of the current folder that is no folder."""
    return cached_path(output_md5s()[path])


def lock_says(old: str, new: str) -> None:
    """Puts one md5 in the place of another, everywhere in dvc.lock."""
    text = LOCK_FILE.read_text()
    assert old in text
    LOCK_FILE.write_text(text.replace(old, new))
