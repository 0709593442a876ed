"""What does a critic cost, and what does it buy? GRPO, RLOO, PPO, DPO and others; writes reports/critic.md.

`python -m benchmarks critic` trains the embedded policy with each method and seeds 0 to 2, two at a time, and
makes one update of SmolLM2 with each; it takes hours. What is done is kept below SCRATCH and not done again.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

import rollbook.settings.examples
from benchmarks.chains import (
    LIKE,
    ROOT,
    SHIPPED,
    base_of,
    chain_once,
    keys_of,
    measured_once,
    one_thread,
    raw_settings,
    with_chains,
    with_spread,
)
from benchmarks.chains import SCRATCH as ALL_SCRATCH
from benchmarks.report import now_and_here, stamped
from benchmarks.tables import markdown
from rollbook.core.ids import BASE_KEY
from rollbook.project.plan import load_stage
from rollbook.rl.context import Context
from rollbook.settings.config import Params
from rollbook.tables.artifacts import path_of, read_json, read_table
from tests.in_process import TRAINING_STAGES, run_stage

REPORT = ROOT / "reports" / "critic.md"
SCRATCH = ALL_SCRATCH / "critic"
SMOLLM2 = Path(rollbook.settings.examples.__file__).parent / "smollm2.yaml"
METHODS = {
    LIKE: "GRPO (shipped recipe)",
    "dr_grpo": "Dr. GRPO",
    "rloo": "RLOO",
    "ppo": "PPO, value head",
    "ppo_network": "PPO, value network",
    "dpo": "DPO",
    "expert_iteration": "expert iteration",
}
"""Recipes and what the tables call them."""
WITH_CRITIC = ("ppo", "ppo_network")
ANSWERS = 2
"""Answers to a prompt with a critic: their presets ask one, of as many prompts as the others have rollouts, and the
training data has fewer prompts than that; an iteration asks none twice."""
ITERATIONS = 10
SEEDS = (0, 1, 2)
SHOWN = (0, 2, 5, 10)
"""Iterations after which a policy is evaluated; 0 is the base."""
WORKERS = 2
SCORE = "eval/heldout/mean_at_4"
LONGER = {"name": "length", "target_tokens": 1, "weight": -1.0}
"""A little for every token, beside the reward of SmolLM2's cost: the untrained model hardly ever answers right, and of
groups that are wrong throughout GRPO computes nothing, so updates would not be comparable."""
WANTED = 0.1
"""Gain that every method should have."""
HALF = (0.4, 0.6)
"""Shares that are called about half."""
FLOAT = 4
"""Bytes of a number in float32, which all of these methods train in here."""


@dataclass(frozen=True)
class Run:
    """One method with one seed.

    Attributes:
        heldout: share of right answers to the held-out prompts, by iteration.
        rewards: mean training reward of each iteration.
        explained: explained variance of the returns before each update; empty without a critic.
        margins: of the pairs of each update; empty without pairs.
        trained: rollouts that each update was to train on.
        update_seconds, seconds: of a processor in each iteration, the update alone and all of it but the evaluation.
    """

    name: str
    seed: int
    heldout: Mapping[str, float]
    rewards: Sequence[float]
    explained: Sequence[float]
    margins: Sequence[float]
    trained: Sequence[int]
    update_seconds: Sequence[float]
    seconds: Sequence[float]

    @property
    def gain(self) -> float:
        """From the base policy to the last."""
        values = list(self.heldout.values())
        return values[-1] - values[0]


@dataclass(frozen=True)
class Cost:
    """One update from the base policy: bytes of tensors, and seconds.

    Attributes:
        rollouts: that an epoch computes; those whose gradient is 0 are left out of it.
        policy: weights of the policy.
        value: weights of the critic, 0 without one.
        peak: most that is alive in the update.
        without_critic: the same of the same rollouts and advantages without the critic; `peak` without one.
        measured: most that is alive where log-probs and values are measured; 0 where nothing is.
        seconds: of the update, nothing counted beside it.
    """

    name: str
    rollouts: int
    policy: int
    value: int
    peak: int
    without_critic: int
    measured: int
    seconds: float

    @property
    def held(self) -> int:
        """Weights, gradients and the two moments of AdamW, of policy and critic."""
        return 4 * (self.policy + self.value)

    @property
    def policy_activations(self) -> int:
        """What else the update holds at its peak without the critic."""
        return self.without_critic - 4 * self.policy

    @property
    def value_activations(self) -> int:
        """What else it holds with the critic."""
        return self.peak - self.held - self.policy_activations


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what is missing; writes the report if all of it was asked for at its full size."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks critic")
    parser.add_argument("names", nargs="*", help=f"methods; default: {', '.join(METHODS)}")
    parser.add_argument("--iterations", type=int, default=ITERATIONS)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--prompts", type=int, help="prompts per iteration, to try things out")
    parser.add_argument("--without-smollm2", action="store_true")
    options = parser.parse_args(arguments)
    names = options.names or list(METHODS)
    jobs = [
        (name, seed, options.iterations, options.prompts)
        for seed in options.seeds
        for name in names
    ]
    with ProcessPoolExecutor(WORKERS, initializer=one_thread) as pool:
        list(pool.map(_base, options.seeds))
        runs = list(pool.map(_job, jobs))
    # Seconds are only comparable if nothing runs beside, so the updates that are weighed come one by one.
    models = {"embedded policy": SHIPPED}
    if not options.without_smollm2:
        models["SmolLM2-135M"] = SMOLLM2
    costs: dict[str, list[Cost]] = {}
    with ProcessPoolExecutor(1, max_tasks_per_child=1, initializer=one_thread) as pool:
        for model, file in models.items():
            prompts = options.prompts if file == SHIPPED else None
            costs[model] = list(pool.map(_cost_job, [(file, name, prompts) for name in names]))
    text = stamped(report(runs, costs, options.iterations, options.prompts), now_and_here())
    print(text)
    if vars(options) == vars(parser.parse_args([])):
        REPORT.write_text(text, encoding="utf-8")


def params_for(seed: int, iterations: int, prompts: int | None, file: Path = SHIPPED) -> Params:
    """Settings with every method as a recipe and a chain for each; all sample alike and have as many rollouts."""
    raw = raw_settings(seed, prompts, file, [name for name in METHODS if name != LIKE])
    like = raw["recipes"][LIKE]
    asked = like["prepare_prompts"]["prompts_per_iteration"]
    if file == SMOLLM2:
        for recipe in raw["recipes"].values():
            recipe["score_rollouts"]["rewards"].append(dict(LONGER))
    for name, recipe in raw["recipes"].items():
        for setting in ("temperature", "top_p", "top_k"):
            recipe["generate_rollouts"].pop(setting, None)
            if setting in like["generate_rollouts"]:
                recipe["generate_rollouts"][setting] = like["generate_rollouts"][setting]
        if name in WITH_CRITIC:
            rollouts = asked * like["generate_rollouts"]["group_size"]
            recipe["prepare_prompts"]["prompts_per_iteration"] = rollouts // ANSWERS
            recipe["generate_rollouts"]["group_size"] = ANSWERS
    return with_chains(raw, iterations)


# --- learning -------------------------------------------------------------------------------------


def _base(seed: int) -> Path:
    return base_of(SCRATCH, params_for(seed, 1, None))


def _job(job: tuple[str, int, int, int | None]) -> Run:
    """One run, or what it said last time."""
    name, seed, iterations, prompts = job
    params, chain = params_for(seed, iterations, prompts), f"{name}-seed{seed}"

    def measure() -> dict[str, Any]:
        return asdict(_trained(name, params, iterations))

    run = Run(**chain_once(_base(seed), chain, iterations, prompts, measure))
    print(f"{name} seed {seed}: {run.gain:+.3f} in {sum(run.seconds):.0f} s", flush=True)
    return run


def _trained(name: str, params: Params, iterations: int) -> Run:
    heldout = {"0": float(read_json(path_of("metrics/evaluate_policy", BASE_KEY))[SCORE])}
    metrics: list[dict[str, float]] = []
    seconds: list[dict[str, float]] = []
    for number, key in enumerate(keys_of(name, iterations), start=1):
        own: dict[str, float] = {}
        metrics.append({})
        for stage in TRAINING_STAGES:
            began = _processor_seconds()
            metrics[-1] |= run_stage(stage, key, params).metrics
            own[stage] = _processor_seconds() - began
        seconds.append(own)
        if number in SHOWN or number == iterations:
            heldout[str(number)] = float(run_stage("evaluate_policy", key, params).metrics[SCORE])
    rollouts = _rollouts(params, name)
    return Run(
        name,
        params.seed,
        heldout,
        [float(each["reward"]) for each in metrics],
        [float(each["explained_variance"]) for each in metrics if "explained_variance" in each],
        [float(each["rewards/margins"]) for each in metrics if "rewards/margins" in each],
        [round((1 - each["frac_rows_not_kept"]) * rollouts) for each in metrics],
        [each["update_policy"] for each in seconds],
        [sum(each.values()) for each in seconds],
    )


def _processor_seconds() -> float:
    """Of this process and those that it has ended: the same beside another run as alone."""
    return sum(os.times()[:4])


def _rollouts(params: Params, name: str) -> int:
    recipe = params.recipes[name]
    return recipe.prepare_prompts.prompts_asked * recipe.generate_rollouts.group_size


# --- cost -----------------------------------------------------------------------------------------


def _cost_job(job: tuple[Path, str, int | None]) -> Cost:
    """One method weighed, or what it said last time."""
    file, name, prompts = job
    scratch = SCRATCH / f"cost-{file.stem}"
    params = params_for(0, 1, prompts, file)
    base = base_of(scratch, params, evaluated=False)
    folder = scratch / f"{prompts or 'shipped'}" / name
    return Cost(**measured_once(folder, base, lambda: asdict(_cost(name, params))))


def _cost(name: str, params: Params) -> Cost:
    from benchmarks.live_tensors import LiveTensors
    from rollbook.rl.training.critic_state import WEIGHTS_FILE

    [key], measured = keys_of(name, 1), 0
    *before, last = TRAINING_STAGES
    for stage in before:
        with LiveTensors() if stage == "measure_logprobs" else contextlib.nullcontext() as memory:
            run_stage(stage, key, params)
        measured = measured if memory is None else memory.peak
    began = time.perf_counter()
    run_stage(last, key, params)
    seconds = time.perf_counter() - began
    values = path_of("values", key) / WEIGHTS_FILE
    with_critic = params.recipes[name].update_policy.critic is not None
    peak = _peak(key, params, critic=True)
    return Cost(
        name,
        _computed(key) // params.recipes[name].update_policy.epochs,
        _weights(path_of("policies", key) / "model.safetensors"),
        _weights(values) if with_critic else 0,
        peak,
        _peak(key, params, critic=False) if with_critic else peak,
        measured,
        seconds,
    )


def _peak(key: str, params: Params, critic: bool) -> int:
    """Most bytes of tensors that the update holds, with or without its critic; nothing is written."""
    from benchmarks.live_tensors import LiveTensors

    stage = load_stage("update_policy")
    settings = stage.settings.of(params, key)
    if not critic:
        update = settings.update.model_copy(update={"critic": None})
        settings = settings.model_copy(update={"update": update})
    inputs = stage.read(key, params)
    with LiveTensors() as memory:
        stage.run(settings, inputs, Context(key, params.runtime, "update_policy"))
    return memory.peak


def _computed(key: str) -> int:
    """Rollouts that the update went over, in all of its epochs."""
    steps, _ = read_table(path_of("optimizer_steps", key), "optimizer_steps")
    return int(pc.sum(pc.subtract(steps["rows"], steps["rows_skipped"])).as_py())


def _weights(file: Path) -> int:
    """Bytes of the tensors of a file in float32."""
    from safetensors import safe_open

    with safe_open(file, "np") as tensors:
        shapes = [tensors.get_slice(name).get_shape() for name in tensors.keys()]  # noqa: SIM118
    return sum(FLOAT * math.prod(shape) for shape in shapes)


# --- the report -----------------------------------------------------------------------------------


def report(
    runs: Sequence[Run],
    costs: Mapping[str, Sequence[Cost]],
    iterations: int,
    prompts: int | None,
) -> str:
    """Everything as Markdown."""
    params = params_for(0, iterations, prompts)
    seeds = ", ".join(str(seed) for seed in sorted({run.seed for run in runs}))
    like = params.recipes[LIKE]
    asked, size = like.prepare_prompts.prompts_asked, like.generate_rollouts.group_size
    parts = [
        "# What a critic costs\n\n"
        "Written by `python -m benchmarks critic`. Every method trains the embedded policy from the same base, "
        f"on prompts of the same source, for {iterations} iterations, seeds {seeds}. Each has {asked * size} rollouts "
        f"an iteration, sampled alike: {asked} prompts × {size} answers, and for PPO, which compares an answer with "
        f"what its critic expects and not with siblings, {asked * size // ANSWERS} prompts × {ANSWERS} answers: its "
        f"presets ask one, and there are not {asked * size} prompts. Sizes (optimizer steps "
        f"{like.update_policy.optimizer_steps}, learning rate {like.update_policy.learning_rate:g}) are those of the "
        "shipped recipe, all else is that of the presets; nothing was tuned for a method.",
        "## Held-out answers\n\nMean of four samples for each held-out prompt, after so many iterations, ± standard "
        f"deviation over seeds.\n\n{_learning(runs)}\n\n{_judged(runs)}",
        f"## Training reward\n\nMean over seeds, by iteration.\n\n{_rewards(runs)}",
        _evidence(runs),
        "## Time\n\nProcessor seconds an iteration on the embedded policy, mean over iterations and seeds; *all* is "
        "without the evaluation. *Epochs*: how often an update goes over its rollouts, as the preset says.\n\n"
        f"{_times(runs, params)}",
        "## Memory\n\nOne update from the base policy. *Rollouts*: those with a gradient; others are not computed. Of "
        "a group of equal rewards GRPO learns nothing; SmolLM2, hardly ever right, is rewarded a little for length, "
        "so that there are few such groups. *Weights*, *gradients* and *moments* (two, of AdamW) are sizes "
        "of the tensors, float32. *Peak* is the most bytes of tensors alive at the end of any operation of the update, "
        "counted as they are made and freed; what a kernel takes for itself is not seen. *Activations* are the rest "
        "of the peak, temporary tensors too: gradients are made while activations are freed, so what fits into their "
        "place is not seen. Those of the critic are what the peak grows by when the same rollouts and "
        "advantages are trained on with it, less its own weights, gradients and moments. *Reference*: it is "
        "measured in a stage of its own before, so the update holds none of it; *measuring* is the peak of that stage.",
        *(_memory(model, found) for model, found in costs.items()),
        "## No critic: about half the memory?\n\n"
        "Shares of what PPO takes. *Kept*: weights, gradients and moments, which is what textbooks count; *with a "
        "reference*: its weights beside them. *Peak, same rollouts*: PPO's own update without its critic; *peak*: "
        "GRPO's own update, in which eight answers share the tokens of their prompt and in PPO's two, and other "
        "settings are those of its recipe. *About half* is 0.4 to 0.6.\n\n" + _halved(costs),
    ]
    return "\n\n".join(parts) + "\n"


def _of(runs: Sequence[Run]) -> dict[str, list[Run]]:
    return {name: own for name in METHODS if (own := [run for run in runs if run.name == name])}


def _learning(runs: Sequence[Run]) -> str:
    shown = list(runs[0].heldout)
    rows = [
        [
            METHODS[name],
            *(with_spread([run.heldout[number] for run in own]) for number in shown),
            with_spread([run.gain for run in own], signed=True),
        ]
        for name, own in _of(runs).items()
    ]
    return markdown(["method", *(f"after {number}" for number in shown), "gain"], rows)


def _judged(runs: Sequence[Run]) -> str:
    short = [
        METHODS[name]
        for name, own in _of(runs).items()
        if statistics.mean(run.gain for run in own) < WANTED
    ]
    if not short:
        return f"All of them gain at least {WANTED:g}."
    return f"Less than {WANTED:g} gain: {', '.join(short)}; see the evidence below."


def _rewards(runs: Sequence[Run]) -> str:
    rows = [
        [
            METHODS[name],
            *(
                f"{statistics.mean(each):.2f}"
                for each in zip(*(run.rewards for run in own), strict=True)
            ),
        ]
        for name, own in _of(runs).items()
    ]
    return markdown(["method", *map(str, range(1, len(runs[0].rewards) + 1))], rows)


def _evidence(runs: Sequence[Run]) -> str:
    """What each update had to learn from."""
    rows = []
    for name, own in _of(runs).items():
        trained = [
            statistics.mean(each) for each in zip(*(run.trained for run in own), strict=True)
        ]
        rows.append(
            [
                METHODS[name],
                f"{trained[0]:.0f} → {trained[-1]:.0f}",
                _course([run.explained for run in own]),
                _course([run.margins for run in own]),
            ]
        )
    head = ["method", "rollouts trained on", "explained variance", "margin of pairs"]
    return (
        "## What updates learned from\n\nFirst → last iteration, mean over seeds. A critic that has learned nothing "
        f"explains 0 of the variance of the returns.\n\n{markdown(head, rows)}"
    )


def _course(values: Sequence[Sequence[float]]) -> str:
    if not values[0]:
        return "–"
    first, last = (statistics.mean(run[place] for run in values) for place in (0, -1))
    return f"{first:.2f} → {last:.2f}"


def _times(runs: Sequence[Run], params: Params) -> str:
    rows = [
        [
            METHODS[name],
            str(params.recipes[name].update_policy.epochs),
            f"{statistics.mean(each for run in own for each in run.update_seconds):.2f}",
            f"{statistics.mean(each for run in own for each in run.seconds):.2f}",
        ]
        for name, own in _of(runs).items()
    ]
    return markdown(["method", "epochs", "update", "all"], rows)


def _memory(model: str, costs: Sequence[Cost]) -> str:
    head = ["method, MiB", "rollouts", "policy: weights", "gradients", "moments", "activations"]
    head += ["critic: weights", "gradients", "moments", "activations", "peak", "measuring"]
    rows = [
        [
            METHODS[cost.name],
            f"{cost.rollouts:,}",
            *map(_mib, (cost.policy, cost.policy, 2 * cost.policy, cost.policy_activations)),
            *map(_mib, (cost.value, cost.value, 2 * cost.value, cost.value_activations)),
            _mib(cost.peak),
            _mib(cost.measured),
        ]
        for cost in costs
    ]
    seconds = ", ".join(f"{METHODS[cost.name]} {cost.seconds:.1f}" for cost in costs)
    return f"### {model}\n\n{markdown(head, rows)}\n\nSeconds of the update alone: {seconds}."


def _mib(size: int) -> str:
    return f"{round(size / 2**20, 1) + 0.0:,.1f}"


def _halved(costs: Mapping[str, Sequence[Cost]]) -> str:
    """GRPO against PPO with each critic, as the textbook counts and as measured."""
    rows, verdicts = [], []
    for model, found in costs.items():
        by_name = {cost.name: cost for cost in found}
        for name in WITH_CRITIC:
            if LIKE not in by_name or name not in by_name:
                continue
            plain, cost = by_name[LIKE], by_name[name]
            held = plain.held / cost.held
            with_reference = (plain.held + plain.policy) / (cost.held + cost.policy)
            alone, peak = cost.without_critic / cost.peak, plain.peak / cost.peak
            shares = (held, with_reference, alone, peak, plain.seconds / cost.seconds)
            rows.append([model, METHODS[name], *(f"{share:.2f}" for share in shares)])
            verdicts.append(
                f"- {METHODS[name]}, {model}: about half of what is kept, {_holds(held)}; about half of the peak, "
                f"{_holds(alone)} for the same rollouts and {_holds(peak)} against GRPO's own."
            )
    head = ["model", "GRPO against", "kept", "with a reference", "peak, same rollouts", "peak"]
    return "\n\n".join([markdown([*head, "seconds of the update"], rows), "\n".join(verdicts)])


def _holds(share: float) -> str:
    """Whether it is about half."""
    return "**holds**" if HALF[0] <= share <= HALF[1] else "**does not hold**"
