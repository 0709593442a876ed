"""Real runs that one setting has spoiled, made in this process in seconds.

    python -m tests.doctor.spoiled [NAME…]      makes them in a temporary folder, and prints what the doctor says

A small task and a short warm start: an iteration takes half a second, and every run starts from one of two base
policies that are made once.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollbook.core.ids import BASE_KEY
from rollbook.project.plan_file import ITERATION_STAGES
from rollbook.project.run.run import Run
from rollbook.settings.config import Params
from rollbook.settings.params import parse_params
from rollbook.views.doctor.diagnosis import diagnosis_of
from tests.in_process import chain_of, make_base, run_of, run_stage
from tests.unit.settings.test_params import shipped

OWN = "tests.doctor.own"
TASK = {"name": "arithmetic", "below": 20}
HELD_OUT = {**TASK, "prompts": 64}
TIMES = {
    "name": "arithmetic",
    "minimum": 60,
    "below": 90,
    "operators": ["*"],
    "evaluation_share": 0.1,
}
"""Products that no policy of this size knows."""
RIGHT = {"name": "numeric_answer"}
BASES: dict[str, dict[str, Any]] = {
    "unsure": {},
    "sure": {"policy.base.wrong_share": 0.0},
}
"""A policy that is right half of the time, like the shipped one, and one that was warmed up on right answers alone."""


@dataclass(frozen=True)
class Spoiled:
    """A run with one setting that spoils it; the rest is the shipped recipe.

    Attributes:
        setting: dotted place in params.yaml.
        value: that it has there.
        checks: that must fire.
        iterations: of the chain.
        beside: further settings, without which the one would do nothing.
        base: name of its base policy.
        evaluated: whether its policies are evaluated.
        suggested: what must be suggested, by check.
    """

    setting: str
    value: Any
    checks: tuple[str, ...]
    iterations: int = 1
    beside: Mapping[str, Any] = field(default_factory=dict)
    base: str = "unsure"
    evaluated: bool = False
    suggested: Mapping[str, str] = field(default_factory=dict)


def _further(function: str, weight: float) -> list[dict[str, Any]]:
    """The shipped reward, and a function of `own.py`."""
    path = f"{OWN}:{function}"
    return [RIGHT, {"name": "function", "path": path, "weight": weight, "label": function}]


HEALTHY = 3
"""Iterations of the healthy run."""
RECIPE = "recipes.grpo"
REWARDS = f"{RECIPE}.score_rollouts.rewards"
LOSS = f"{RECIPE}.update_policy.loss"
RATE = f"{RECIPE}.update_policy.learning_rate"
SAMPLING = f"{RECIPE}.generate_rollouts"
CRITIC = f"{RECIPE}.update_policy.critic"
ESTIMATOR = f"{RECIPE}.compute_advantages.estimator"
GAE = {ESTIMATOR: {"name": "gae", "lam": 0.95}}
DPO = {ESTIMATOR: {"name": "pairs"}, LOSS: {"name": "dpo"}}
SPOILED = {
    "learning rate times 30": Spoiled(RATE, 9e-3, ("ratio_blowup",)),
    "a tenth of the clip": Spoiled(
        LOSS, {"name": "dapo", "clip_low": 0.02, "clip_high": 0.028}, ("clip_share",), 3
    ),
    "groups of two": Spoiled(f"{SAMPLING}.group_size", 2, ("group_size",)),
    "two tokens": Spoiled(f"{SAMPLING}.max_completion_tokens", 2, ("truncation", "token_limit")),
    "a reward for empty answers": Spoiled(
        REWARDS,
        _further("empty", 3.0),
        ("winning_answers", "reward_and_evaluation"),
        iterations=4,
        beside={f"{LOSS}.clip_high": 4.0, f"{SAMPLING}.temperature": 2.0},
        evaluated=True,
    ),
    "a noisy reward": Spoiled(
        REWARDS, _further("noise", 1.0), ("noisy_grader",), beside=BASES["sure"], base="sure"
    ),
    "a reward that says little": Spoiled(REWARDS, _further("rarely", 1.0)[1:], ("reward_values",)),
    "KL times 100": Spoiled(f"{LOSS}.kl_coef", 4.0, ("kl_strength",), 2),
    "KL that holds nothing": Spoiled(
        RATE, 3e-3, ("kl_drift", "ratio_blowup"), 2, {f"{LOSS}.kl_coef": 1e-3}
    ),
    "KL without a coefficient": Spoiled(f"{LOSS}.kl_estimator", "k2", ("kl_assumed",)),
    "entropy bonus of 1": Spoiled(f"{LOSS}.entropy_coef", 1.0, ("entropy_blowup",), 4),
    "five epochs": Spoiled(f"{RECIPE}.update_policy.epochs", 5, ("stale_data",)),
    "temperature 0.1": Spoiled(f"{SAMPLING}.temperature", 0.1, ("diversity",)),
    "another temperature in the engine": Spoiled(
        f"{SAMPLING}.engine",
        {"path": f"{OWN}:Warmer"},
        ("engine_mismatch",),
        beside={f"{RECIPE}.update_policy.old_logprobs": "measured"},
    ),
    "an engine that repeats itself": Spoiled(
        f"{SAMPLING}.engine", {"path": f"{OWN}:Repeating"}, ("repeated_samples",)
    ),
    "easy prompts": Spoiled("policy.base.wrong_share", 0.0, ("difficulty",), base="sure"),
    "easy and hopeless prompts": Spoiled(
        "data.train", [TASK, TIMES], ("zero_signal",), beside=BASES["sure"], base="sure"
    ),
    "a leak": Spoiled(
        "data.evaluation.heldout",
        {**HELD_OUT, "evaluation_share": 0.9, "template": "{left} {sign} {right} ="},
        ("evaluation_leak",),
    ),
    "a critic at a hundredth of its rate": Spoiled(
        CRITIC,
        {"name": "network", "learning_rate": 3e-5},
        ("explained_variance", "value_loss"),
        iterations=4,
        beside=GAE,
        suggested={"explained_variance": "0.003", "value_loss": "0.003"},
    ),
    "a critic at a hundred times its rate": Spoiled(
        CRITIC,
        {"name": "network", "learning_rate": 0.3},
        ("explained_variance",),
        iterations=4,
        beside=GAE,
        suggested={"explained_variance": "0.03"},
    ),
    "a gap that most pairs lack": Spoiled(
        f"{ESTIMATOR}.min_gap",
        1.17,
        ("pairs_few",),
        beside={**DPO, REWARDS: _further("noise", 100.0)},
        suggested={"pairs_few": "0.58"},
    ),
    "pairs of easy prompts": Spoiled(
        f"{SAMPLING}.temperature",
        0.9,
        ("pairs_few",),
        beside={**DPO, **BASES["sure"]},
        base="sure",
        suggested={"pairs_few": "informative"},
    ),
    "beta times 20": Spoiled(
        f"{LOSS}.beta",
        2.0,
        ("pairs_easy",),
        iterations=3,
        beside={**DPO, REWARDS: [{"name": "function", "path": f"{OWN}:begins"}]},
    ),
}


def settings(changes: Mapping[str, Any], iterations: int, evaluated: bool = True) -> Params:
    """The shipped settings on the small task, with values changed at dotted places."""
    raw = shipped(
        data__train=[TASK],
        data__evaluation={"heldout": HELD_OUT},
        policy__base={"name": "tiny", "warm_start_steps": 150, "warm_start_batch": 64},
        recipes__grpo__prepare_prompts={"prompts_per_iteration": 32},
        runtime={"threads": 1, "scoring_processes": 0},
    )
    for place, value in changes.items():
        *parents, last = place.split(".")
        node = raw
        for part in parents:
            node = node.setdefault(part, {})
        node[last] = deepcopy(value)  # runs share it, and a later place may lie in it
    chain = chain_of("grpo", [f"i{number:04}" for number in range(1, iterations + 1)])
    raw["iterations"] = {key: {**item, "evaluate": evaluated} for key, item in chain.items()}
    return parse_params(raw)


def make_bases(folder: Path) -> None:
    """Data, base policy and its evaluation of all `BASES`, one folder each."""
    for name, changes in BASES.items():
        params = settings(changes, 0)
        _enter(folder / name)
        make_base(params)
        if not changes:  # what the other one says before training is not asked for
            run_stage("evaluate_policy", BASE_KEY, params)


def make_run(bases: Path, base: str, params: Params, folder: Path) -> None:
    """Runs the iterations of `params` in a new folder, which becomes the current one."""
    _enter(folder)
    shutil.copytree(bases / base / "artifacts", "artifacts")
    run_stage("prepare_data", BASE_KEY, params)
    for key in params.iterations:
        for stage in ITERATION_STAGES:
            run_stage(stage, key, params)


def make_spoiled(bases: Path, run: Spoiled, folder: Path) -> Run:
    """Makes a spoiled run in a new folder, which becomes the current one."""
    params = settings({**run.beside, run.setting: run.value}, run.iterations, run.evaluated)
    make_run(bases, run.base, params, folder)
    return run_of(params)


def _enter(folder: Path) -> None:
    (folder / ".dvc" / "tmp").mkdir(parents=True)
    os.chdir(folder)


def main(names: list[str]) -> None:
    """Makes the runs of these names, or all, and prints what is found in them."""
    with tempfile.TemporaryDirectory() as made:
        make_bases(Path(made))
        for place, name in enumerate(names or SPOILED):
            found = diagnosis_of(make_spoiled(Path(made), SPOILED[name], Path(made) / str(place)))
            print(f"\n{name}: {SPOILED[name].setting}")
            for each in found.findings:
                print(f"  {each.grade} {each.check} {each.where}: {each.title}")
                print(
                    *(f"    {line}" for line in (*each.evidence, each.cause, each.change)), sep="\n"
                )
        os.chdir("/")


if __name__ == "__main__":
    main(sys.argv[1:])
