"""How long `rollbook show` takes with many stored rollouts: the command in its own process, its start included."""

from __future__ import annotations

import contextlib
import itertools
import resource
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.tables import markdown
from rollbook.components.policies.byte_tokenizer import save_byte_tokenizer
from rollbook.core.framework_imports import lean_transformers
from rollbook.core.ids import BASE_KEY, PARAMS_FILE, group_id_of, rollout_id_of
from rollbook.core.ragged import Ragged
from rollbook.dvc.lock import LOCK_FILE
from rollbook.project.plan_file import ITERATION_STAGES
from rollbook.tables.artifacts import (
    Facts,
    path_of,
    read_facts,
    schema_of,
    write_folder,
    write_json,
    write_table,
)
from tests.e2e.projects import environment
from tests.unit.settings.test_params import shipped

ITERATIONS = 50
ROWS = 2_000
"""Rollouts of an iteration."""
LARGE_KEY = "large0001"
LARGE = 100_000
"""Rollouts of one iteration that is larger than all others together."""
GROUP, TOKENS = 8, 50
EVALUATED = 64
"""Prompts of the evaluation set, each with four samples and a greedy answer."""
SAMPLES = 4
TIMES = 5
SET = "heldout"
KIND_OF = {
    "prepare_prompts": "prompts",
    "generate_rollouts": "rollouts",
    "score_rollouts": "scores",
    "measure_logprobs": "logprobs",
    "compute_advantages": "advantages",
    "update_policy": "updates",
    "evaluate_policy": "evaluations",
}
"""A table of each stage."""
LIMIT = 1.0
"""Seconds that a look may take."""


@dataclass(frozen=True)
class Measured:
    """One command, several times.

    Attributes:
        what: it was asked for.
        median, slowest: wall time, s, from the start of the process to its end.
        processor: processor time of the quickest, s; hardly depends on what else the machine does.
    """

    what: str
    median: float
    slowest: float
    processor: float


def report(
    iterations: int = ITERATIONS, rows: int = ROWS, large: int = LARGE, times: int = TIMES
) -> str:
    """The table: a row per thing that is shown."""
    keys = [f"i{number:04d}" for number in range(1, iterations + 1)]
    with TemporaryDirectory() as folder, contextlib.chdir(folder):
        make_project(keys, rows)
        middle = keys[len(keys) // 2]
        wanted = ids_in(middle, rows)
        found = [
            _measured(
                f"{name}, {iterations * rows:,} rollouts in {iterations} iterations", each, times
            )
            for name, each in wanted.items()
        ]
        make_iteration(LARGE_KEY, keys[-1], large)
        each = ids_in(LARGE_KEY, large)["rollout"]
        found.append(_measured(f"rollout, one iteration of {large:,} rollouts more", each, times))
    lines = [
        [item.what, f"{item.median:.2f}", f"{item.slowest:.2f}", f"{item.processor:.2f}"]
        for item in found
    ]
    head = ["`rollbook show` of a", f"median of {times}, s", "slowest, s", "processor, s"]
    kept = "all" if all(item.slowest <= LIMIT for item in found) else "not all"
    return (
        f"## Showing\n\n`rollbook show ID` as a process of its own, from its start to its end: interpreter, imports, "
        f"finding the id, reading, computing the advantage again, printing. Rollouts have {TOKENS} tokens, groups "
        f"{GROUP} answers; {EVALUATED} prompts are evaluated in every iteration.\n\n{markdown(head, lines)}\n\n"
        f"A look may take {LIMIT:g} s: {kept} of these stay below."
    )


def ids_in(key: str, rows: int) -> dict[str, list[str]]:
    """What to show, and its arguments: things of one iteration, found by whole ids and by beginnings of them."""
    prompt = _prompt_ids(key, rows)[rows // GROUP // 2]
    group = group_id_of(key, prompt)
    evaluated = _evaluated()[0]
    return {
        "rollout": [rollout_id_of(group, 3)],
        "rollout by the beginning of its prompt's id": [f"{key}/{prompt[:12]}/03"],
        "rollout as JSON": [rollout_id_of(group, 3), "--json"],
        "rollout as HTML": [rollout_id_of(group, 3), "--html", "page.html"],
        "rollout of an evaluation": [rollout_id_of(group_id_of(key, evaluated, SET), 2)],
        "group": [group],
        "prompt of one iteration": [prompt],
        "prompt by the beginning of its id": [prompt[:12]],
        "prompt of one iteration over time": [prompt, "--over-time"],
        "prompt of every evaluation over time": [evaluated, "--over-time"],
        "policy": [key],
        "policy by its digest": [_digest(key)[:12]],
    }


def _measured(what: str, arguments: Sequence[str], times: int) -> Measured:
    """The first time, which may write compiled modules, does not count."""
    seconds, processor = [], []
    for _ in range(times + 1):
        started, before = time.perf_counter(), _processor_seconds()
        said = subprocess.run(
            ["rollbook", "show", *arguments],
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        seconds.append(time.perf_counter() - started)
        processor.append(_processor_seconds() - before)
        assert said.returncode == 0, said.stderr
    return Measured(what, float(np.median(seconds[1:])), max(seconds[1:]), min(processor[1:]))


def _processor_seconds() -> float:
    """Of all processes started from here that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# --- a project ------------------------------------------------------------------------------------


def make_project(keys: Sequence[str], rows: int) -> None:
    """Iterations on disk as training leaves them, but for the weights, below the current directory."""
    raw = shipped()
    raw["iterations"] = {
        key: {"previous": previous, "recipe": "grpo", "reference": BASE_KEY}
        for previous, key in itertools.pairwise([BASE_KEY, *keys])
    }
    lines = [
        f"  {key}: {{previous: {item['previous']}, recipe: grpo, reference: i0000}}"
        for key, item in raw["iterations"].items()
    ]
    PARAMS_FILE.write_text("\n".join(["seed: 0", "iterations:", *lines]), encoding="utf-8")
    with (
        lean_transformers()
    ):  # as all code here imports it: what it finds the first time, it expects later
        write_folder(lambda folder: save_byte_tokenizer(folder, 1024), "policies", BASE_KEY)
    base = {"settings": {"policy": {"base": {"name": "tiny"}}}, "inputs": {}}
    _info("init_policy", BASE_KEY, {**base, "outputs": {"policies": _digest(BASE_KEY)}})
    write_table(_data(), "data", "evaluation")
    LOCK_FILE.write_text(_lock(keys), encoding="utf-8")
    for previous, key in itertools.pairwise([BASE_KEY, *keys]):
        make_iteration(key, previous, rows)


def make_iteration(key: str, previous: str, rows: int) -> None:
    """All tables of an iteration, its metrics and its run_info."""
    prompts = _prompt_ids(key, rows)
    groups = [group_id_of(key, prompt) for prompt in prompts]
    count = len(prompts) * GROUP
    ids = {
        "rollout_id": [rollout_id_of(group, index) for group in groups for index in range(GROUP)],
        "group_id": np.repeat(groups, GROUP),
        "prompt_id": np.repeat(prompts, GROUP),
        "iteration": [key] * count,
    }
    lengths = np.full(count, TOKENS)
    index = np.arange(count) % GROUP
    reward = (index < GROUP // 2).astype(float)
    write_table(schema_of("prompts").build(_prompt_columns(key, prompts)), "prompts", key)
    completions = _completions(lengths, index, _digest(previous))
    nothing = pa.nulls(count)
    content: dict[str, dict[str, Any]] = {
        "rollouts": {**ids, **completions},
        "scores": {
            **ids,
            "reward": reward,
            "error": nothing.cast(pa.string()),
            "step_rewards": nothing.cast(schema_of("scores").columns["step_rewards"].dtype),
            "reward_numeric_answer": reward,
        },
        "advantages": {
            **ids,
            "advantage": (reward - 0.5) / (0.5 + 1e-4),
            **{
                name: nothing.cast(schema_of("advantages").columns[name].dtype)
                for name in ("token_advantages", "token_returns")
            },
            "group_mean": np.full(count, 0.5),
            "group_std": np.full(count, 0.5),
            "informative": np.ones(count, bool),
            "kept": np.ones(count, bool),
        },
        "updates": {
            **ids,
            "trained": np.ones(count, bool),
            "reason": nothing.cast(pa.string()),
            "policy_logprobs": _floats(lengths, 1),
            **{name: np.ones(count) for name in ("ratio_mean", "ratio_min", "ratio_max")},
            "clipped_fraction": np.zeros(count),
            **{name: nothing.cast(pa.float64()) for name in ("kl", "rollout_weight")},
            "loss_share": np.full(count, 1 / count),
        },
    }
    read: dict[str, str] = {"policies": _digest(previous)}
    for kind, columns in content.items():
        facts: Facts = write_table(schema_of(kind).build(columns), kind, key, read)
        read[kind] = facts.content_hash
    logprobs = write_table(schema_of("logprobs").empty(), "logprobs", key, read)
    read["logprobs"] = logprobs.content_hash
    _evaluations(key)
    for stage, settings in _settings().items():
        made = {"policies": _digest(key)} if stage == "update_policy" else {}
        _info(stage, key, {"settings": settings, "inputs": read, "outputs": made})
    write_json({"kept_groups": len(prompts)}, path_of("metrics/compute_advantages", key))
    write_json({f"eval/{SET}/mean_at_4": 0.5}, path_of("metrics/evaluate_policy", key))
    write_json({"loss": 0.1, "optimizer_step": 1}, path_of("metrics/update_policy", key))


def _lock(keys: Sequence[str]) -> str:
    """A dvc.lock as long as DVC's."""
    lines = ["schema: '2.0'", "stages:"]
    for key in keys:
        for stage in ITERATION_STAGES:
            lines += [
                f"  {stage}@{key}:",
                f"    cmd: python -P -m rollbook.stages.{stage} --iteration {key}",
            ]
            for part, paths in (
                ("deps", ("prompts", "rollouts", "scores", "policies")),
                ("outs", (KIND_OF[stage], f"metrics/{stage}", f"run_info/{stage}")),
            ):
                lines.append(f"    {part}:")
                for kind in paths:
                    lines += [
                        f"    - path: {path_of(kind, key)}",
                        "      hash: md5",
                        f"      md5: {_hex(len(lines)) * 2}",
                        "      size: 12345",
                    ]
    return "\n".join(lines)


def _prompt_columns(key: str, prompts: Sequence[str]) -> dict[str, Any]:
    return {
        "iteration": [key] * len(prompts),
        "group_id": [group_id_of(key, prompt) for prompt in prompts],
        "prompt_id": prompts,
        "messages": [[{"role": "user", "content": prompt}] for prompt in prompts],
        "prompt": prompts,
        "prompt_token_ids": [[10, 11, 12]] * len(prompts),
        "reference_answer": ["5"] * len(prompts),
        "source": ["arithmetic"] * len(prompts),
    }


def _completions(lengths: np.ndarray, index: np.ndarray, digest: str) -> dict[str, Any]:
    count = len(lengths)
    text = "1" * TOKENS
    return {
        "sample_index": index,
        "greedy": np.zeros(count, bool),
        "seed": np.arange(count),
        "completion_token_ids": Ragged(np.full(lengths.sum(), 22, np.int32), lengths).to_column(),
        "loss_mask": Ragged(np.ones(lengths.sum(), bool), lengths).to_column(),
        "completion": [text] * count,
        "text": [text] * count,
        "sampling_logprobs": _floats(lengths, 0),
        "finish_reason": ["length"] * count,
        "policy_digest": [digest] * count,
    }


def _floats(lengths: np.ndarray, seed: int) -> pa.Array:
    """Log-probs that compress as little as real ones."""
    values = -np.random.default_rng(seed).exponential(0.5, lengths.sum())
    return Ragged(values.astype(np.float32), lengths).to_column()


def _evaluations(key: str) -> None:
    prompts = _evaluated()
    count, size = len(prompts) * (SAMPLES + 1), SAMPLES + 1
    index = np.arange(count) % size
    groups = [group_id_of(key, prompt, SET) for prompt in prompts]
    columns = {
        "rollout_id": [rollout_id_of(group, place) for group in groups for place in range(size)],
        "group_id": np.repeat(groups, size),
        "prompt_id": np.repeat(prompts, size),
        "iteration": [key] * count,
        "set": [SET] * count,
        "prompt": np.repeat(prompts, size),
        "reference_answer": ["5"] * count,
        **_completions(np.full(count, TOKENS), index, _digest(key)),
        "greedy": index == SAMPLES,
        "reward": (index % 2).astype(float),
        "error": pa.nulls(count, pa.string()),
        "step_rewards": pa.nulls(count, schema_of("scores").columns["step_rewards"].dtype),
        "reward_numeric_answer": (index % 2).astype(float),
    }
    write_table(schema_of("evaluations").build(columns), "evaluations", key)


def _data() -> pa.Table:
    prompts = _evaluated()
    columns = {
        "prompt_id": prompts,
        "messages": [[{"role": "user", "content": prompt}] for prompt in prompts],
        "reference_answer": ["5"] * len(prompts),
        "source": ["arithmetic"] * len(prompts),
        "set": [SET] * len(prompts),
    }
    return schema_of("data").build(columns)


def _settings() -> dict[str, dict[str, Any]]:
    """What run_info says the stages ran with."""
    raw = shipped()["recipes"]["grpo"]
    reward = {"column": "reward_numeric_answer", "weight": 1.0}
    return {
        "generate_rollouts": {"generate": raw["generate_rollouts"]},
        "score_rollouts": {"score_rollouts": raw["score_rollouts"]},
        "compute_advantages": {
            "compute_advantages": raw["compute_advantages"],
            "rewards": [reward],
            "group_size": GROUP,
        },
        "update_policy": {"update": raw["update_policy"]},
        "evaluate_policy": {
            "evaluate": {"engine": {"name": "transformers"}, "scorer": {"name": "numeric_answer"}}
        },
    }


def _info(stage: str, key: str, content: dict[str, Any]) -> None:
    about = {"stage": stage, "iteration": key, "finished": "2026-01-01T00:00:00.000+00:00"}
    code = {f"rollbook/module_{number}.py": f"{number:064d}" for number in range(50)}
    write_json({**about, "code": code, **content}, path_of(f"run_info/{stage}", key))


def _prompt_ids(key: str, rows: int) -> list[str]:
    first = sum(key.encode()) + int(key[-4:]) * rows
    return [_hex(first + place) for place in range(rows // GROUP)]


def _evaluated() -> list[str]:
    return [_hex(-1 - place) for place in range(EVALUATED)]


def _hex(number: int) -> str:
    """16 digits that look like a hash, other ones for every number."""
    return f"{(number * 0x9E3779B97F4A7C15) % 2**64:016x}"


def _digest(key: str) -> str:
    """Of the policy of an iteration."""
    if key == BASE_KEY:
        return read_facts(path_of("policies", BASE_KEY)).content_hash
    number = sum(place * byte for place, byte in enumerate(key.encode(), start=1)) << 16 | int(
        key[-4:]
    )
    return "".join(_hex(number * 7 + part) for part in range(4))


if __name__ == "__main__":
    print(report())
