"""Chains of iterations under many recipes, from one base and on the same prompts, in this process.

What is measured is kept below a scratch folder of its own and not measured again; delete that to start anew.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rollbook.core.atomic import replacing
from rollbook.core.ids import BASE_KEY
from rollbook.core.scratch import SCRATCH as PROJECT_SCRATCH
from rollbook.core.yaml import parse_yaml, read_yaml
from rollbook.settings.config import Params
from rollbook.settings.params import parse_params, resolve_recipes
from rollbook.settings.preset_recipe import Task, preset_recipe
from rollbook.settings.presets import presets, read_preset
from rollbook.tables.artifacts import ROOT as ARTIFACTS
from tests.in_process import make_base, run_stage

ROOT = Path(__file__).parents[1]
SCRATCH = ROOT / PROJECT_SCRATCH
SHIPPED = ROOT / "params.yaml"
LIKE = "grpo"
"""The shipped recipe: sizes and task are its own."""


def raw_settings(
    seed: int, prompts: int | None = None, file: Path = SHIPPED, names: Sequence[str] | None = None
) -> dict[str, Any]:
    """A params.yaml whose recipes are its `grpo` and presets for the same task, at the same sizes.

    Args:
        seed: of the run.
        prompts: per iteration; None: as the file has them.
        file: to start from.
        names: of presets; None: all.
    """
    raw = read_yaml(file)
    raw["seed"] = seed
    if prompts is not None:
        raw["recipes"][LIKE]["prepare_prompts"]["prompts_per_iteration"] = prompts
    recipes = parse_params({**raw, "iterations": {}}).recipes
    task = Task(LIKE, resolve_recipes(raw["recipes"])[0][LIKE], recipes[LIKE])
    raw["recipes"] = {
        LIKE: raw["recipes"][LIKE],
        **{
            name: parse_yaml(preset_recipe(read_preset(name), task, sizes=True), name)
            for name in (presets() if names is None else names)
        },
    }
    return raw


def with_chains(raw: dict[str, Any], iterations: int) -> Params:
    """The settings with a chain of so many iterations for each recipe."""
    raw["iterations"] = {
        key: {"previous": previous, "recipe": name, "reference": BASE_KEY}
        for name in raw["recipes"]
        for previous, key in zip(
            [BASE_KEY, *keys_of(name, iterations)], keys_of(name, iterations), strict=False
        )
    }
    return parse_params(raw)


def keys_of(name: str, iterations: int) -> list[str]:
    """Keys of a recipe's chain: letters and four digits."""
    letters = "".join(character for character in name if character.isalpha())
    return [f"{letters}{number:04d}" for number in range(1, iterations + 1)]


def base_of(scratch: Path, params: Params, evaluated: bool = True) -> Path:
    """Folder with data and base policy of a seed; made once for all recipes."""
    folder = scratch / f"base-seed{params.seed}"
    if not (folder / "done").exists():
        folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)
        make_base(params)
        if evaluated:
            run_stage("evaluate_policy", BASE_KEY, params)
        Path("done").touch()
    return folder


def measured_once(folder: Path, base: Path, measure: Callable[[], dict[str, Any]]) -> Any:
    """What `measure` says in a copy of the base, plain values, or what it said last time."""
    file = folder / "run.json"
    if not file.exists():
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(base, folder)
        os.chdir(folder)
        found = measure()
        with replacing(file) as temporary:
            temporary.write_text(json.dumps(found), encoding="utf-8")
        shutil.rmtree(folder / ARTIFACTS)
    return json.loads(file.read_text(encoding="utf-8"))


def chain_once(
    base: Path,
    chain: str,
    iterations: int,
    prompts: int | None,
    measure: Callable[[], dict[str, Any]],
) -> Any:
    """`measured_once` of one chain, in a folder beside its base that says how long it is and what it asks.

    Args:
        base: of its seed, from `base_of`.
        chain: its name, seed included.
        iterations: of the chain.
        prompts: per iteration; None: as params.yaml has them.
        measure: trains it.
    """
    folder = base.parent / f"{iterations}x{prompts or 'shipped'}" / chain
    return measured_once(folder, base, measure)


def one_thread() -> None:
    """As params.yaml says for the tiny policy; the workers share the processors."""
    os.environ["OMP_NUM_THREADS"] = "1"


def with_spread(values: Sequence[float], signed: bool = False) -> str:
    """Mean ± standard deviation."""
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):{'+' if signed else ''}.3f} ± {spread:.3f}"
