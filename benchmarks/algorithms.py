"""Does every preset lift the reward? All of them on the same data, base policy and sizes; writes reports/algorithms.md.

`python -m benchmarks algorithms` trains each preset for ITERATIONS iterations with seeds 0 to 2, two at a time,
through the stages' own functions. What is done is kept below SCRATCH and not done again; delete it to start anew.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.chains import (
    LIKE,
    ROOT,
    base_of,
    chain_once,
    keys_of,
    one_thread,
    raw_settings,
    with_chains,
    with_spread,
)
from benchmarks.chains import SCRATCH as ALL_SCRATCH
from benchmarks.tables import markdown
from rollbook.core.ids import BASE_KEY
from rollbook.settings.config import Params
from rollbook.settings.presets import presets
from rollbook.settings.recipe_words import UNSET, differences
from rollbook.tables.artifacts import path_of, read_json
from tests.in_process import run_stage, train

REPORT = ROOT / "reports" / "algorithms.md"
SCRATCH = ALL_SCRATCH / "algorithms"
ITERATIONS = 8
SEEDS = (0, 1, 2)
WORKERS = 2
SCORE = "eval/heldout/mean_at_4"


@dataclass(frozen=True)
class Run:
    """One preset with one seed.

    Attributes:
        start, end: share of right answers to the held-out prompts, before and after.
        rewards: mean training reward of each iteration.
        kept: groups that the update of each iteration trained on.
        seconds: for all iterations, without data, base policy and evaluation.
    """

    name: str
    seed: int
    start: float
    end: float
    rewards: list[float]
    kept: list[int]
    seconds: float


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what is missing, then writes the report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks algorithms")
    parser.add_argument("names", nargs="*", help="presets; default: all, and the shipped recipe")
    parser.add_argument("--iterations", type=int, default=ITERATIONS)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--prompts", type=int, help="prompts per iteration, to try things out")
    options = parser.parse_args(arguments)
    names = options.names or [LIKE, *presets()]
    jobs = [
        (name, seed, options.iterations, options.prompts)
        for seed in options.seeds
        for name in names
    ]
    with ProcessPoolExecutor(WORKERS, initializer=one_thread) as pool:
        list(pool.map(_base, options.seeds))
        runs = list(pool.map(_job, jobs))
    text = report(runs, options.iterations, options.prompts)
    if options.names or options.prompts or options.iterations != ITERATIONS:
        print(text)
        return
    REPORT.write_text(text, encoding="utf-8")
    print(text)


def report(runs: Sequence[Run], iterations: int, prompts: int | None) -> str:
    """The table: a row per preset, over its seeds."""
    params = params_for(0, iterations, prompts)
    recipe = params.recipes[LIKE]
    rows = []
    for name in dict.fromkeys(run.name for run in runs):
        own = [run for run in runs if run.name == name]
        gains = [run.end - run.start for run in own]
        first = [run.rewards[0] for run in own]
        last = [run.rewards[-1] for run in own]
        rows.append(
            [
                name,
                f"{statistics.mean(run.start for run in own):.3f}",
                f"{statistics.mean(run.end for run in own):.3f}",
                with_spread(gains, signed=True),
                f"{statistics.mean(first):.3f} → {statistics.mean(last):.3f}",
                f"{statistics.mean(kept for run in own for kept in run.kept):.0f}",
                f"{statistics.mean(run.seconds for run in own):.0f}",
                _in_few_words(params, name),
            ]
        )
    seeds = sorted({run.seed for run in runs})
    head = [
        "preset",
        "start",
        "end",
        "gain ± over seeds",
        "training reward",
        "groups trained on",
        "seconds",
        "sets, against the shipped recipe",
    ]
    return (
        "# Algorithms\n\n"
        "Written by `python -m benchmarks algorithms`. Every preset trains the embedded policy from the same "
        f"base on the same prompts for {iterations} iterations, seeds {', '.join(map(str, seeds))}, at the sizes of "
        f"the shipped recipe (`rollbook recipe add … --like {LIKE}`): "
        f"{recipe.prepare_prompts.prompts_per_iteration} prompts × {recipe.generate_rollouts.group_size} answers, "
        f"{recipe.update_policy.optimizer_steps} optimizer steps, learning rate "
        f"{recipe.update_policy.learning_rate:g}.\n\n"
        "*start*, *end*: mean of four samples for each held-out prompt, before and after. *training reward*: of the "
        "first and the last iteration, task and preset rewards together, so it differs in scale between presets. "
        "Nothing was tuned for a preset: a learning rate that suits one loss is too low or too high for another, and "
        "the order of rows says little about language models.\n\n"
        f"{markdown(head, rows)}\n"
    )


def params_for(seed: int, iterations: int, prompts: int | None) -> Params:
    """The shipped settings with every preset as a recipe, and a chain of iterations for each."""
    return with_chains(raw_settings(seed, prompts), iterations)


def _base(seed: int) -> Path:
    """Data and base policy of a seed, evaluated."""
    return base_of(SCRATCH, params_for(seed, 1, None))


def _job(job: tuple[str, int, int, int | None]) -> Run:
    """One run, or what it said last time."""
    name, seed, iterations, prompts = job
    params, chain = params_for(seed, iterations, prompts), f"{name}-seed{seed}"

    def measure() -> dict[str, Any]:
        return asdict(_trained(name, params, iterations))

    run = Run(**chain_once(_base(seed), chain, iterations, prompts, measure))
    print(f"{name} seed {seed}: {run.start:.3f} → {run.end:.3f} in {run.seconds:.0f} s", flush=True)
    return run


def _trained(name: str, params: Params, iterations: int) -> Run:
    start = read_json(path_of("metrics/evaluate_policy", BASE_KEY))[SCORE]
    keys, began = keys_of(name, iterations), time.perf_counter()
    made = train(keys, params)
    seconds = time.perf_counter() - began
    end = run_stage("evaluate_policy", keys[-1], params).metrics[SCORE]
    return Run(
        name,
        params.seed,
        float(start),
        float(end),
        [float(made[key]["score_rollouts"].metrics["reward"]) for key in keys],
        [int(made[key]["compute_advantages"].metrics["kept_groups"]) for key in keys],
        seconds,
    )


def _in_few_words(params: Params, name: str) -> str:
    """What is different in the objective; of a reward that is added, its name."""
    shown = []
    for item in differences(params.recipes[LIKE], params.recipes[name]):
        *sections, last = item.place.split(".")
        value = item.values[1]
        if item.is_size or value == UNSET or last in ("old_logprobs", "rollout_correction"):
            continue
        if sections[:2] == ["score_rollouts", "rewards"]:
            shown += [f"reward {value}"] if len(sections) == 2 else []
        else:
            shown.append(f"{'.'.join([*sections[1:], last])} {value}")
    return ", ".join(shown) or "the shipped recipe"
