"""Iterations on disk as training would have left them, with what a check is to see; in milliseconds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from rollbook.components.advantages.base import AdvantageEstimator
from rollbook.core.registry import build
from rollbook.settings.config import Params
from rollbook.settings.params import parse_params
from rollbook.tables.artifacts import path_of, schema_of, write_json, write_table
from rollbook.views.doctor.chain import chain_reading_of
from rollbook.views.doctor.checks.base import Check
from rollbook.views.doctor.finding import Finding
from tests.builders import advantage_inputs, prompt_rows, rollout_rows
from tests.in_process import chain_of, run_of
from tests.unit.settings.test_params import shipped

GROUPS = 20
"""More than the fewest that an interval is given for."""
KEYS = ("i0001", "i0002", "i0003")
IDS = ("rollout_id", "group_id", "prompt_id", "iteration")
RIGHT, WRONG, MIXED = [1.0] * 4, [0.0] * 4, [1.0, 0.0, 1.0, 0.0]


def params_of(keys: Sequence[str] = KEYS, **changes: Any) -> Params:
    """The shipped settings with groups of four, a chain of these iterations, and values at dotted places."""
    raw = shipped(recipes__grpo__generate_rollouts__group_size=4)
    raw["iterations"] = chain_of("grpo", keys)
    for place, value in changes.items():
        *parents, last = place.split("__")
        node = raw
        for part in parents:
            node = node.setdefault(part, {})
        node[last] = value
    return parse_params(raw)


def metrics(key: str, **values: float) -> None:
    """Metrics of an update; `/` in their names is written `__`."""
    named = {name.replace("__", "/"): value for name, value in values.items()}
    write_json(named, path_of("metrics/update_policy", key))


def store(
    key: str,
    rewards: Sequence[Sequence[float | None]],
    texts: Sequence[Sequence[str]] | None = None,
    components: Mapping[str, Sequence[Sequence[float | None]]] | None = None,
    logged: Mapping[str, float] | None = None,
    cut: Sequence[bool] = (False,),
    likelihood: float | None = None,
    references: Sequence[str] = (),
) -> None:
    """Prompts, rollouts and scores of an iteration.

    Args:
        key: of the iteration.
        rewards: of each answer, by group.
        texts: likewise; default: all different.
        components: rewards of functions by label; default: all of the reward is that of `numeric_answer`.
        logged: further columns of the scores, the same for every answer.
        cut: whether answers were cut off, by their place in a group; one for all.
        likelihood: of each whole answer; default: that of its builder.
        references: answers of the prompts; default: all different.
    """
    prompts = prompt_rows(len(rewards), key)
    for prompt, reference in zip(prompts, references, strict=False):
        prompt["reference_answer"] = reference
    texts = texts or [
        [f"{group} {place}" for place in range(len(each))] for group, each in enumerate(rewards)
    ]
    rollouts = rollout_rows(prompts, texts)
    parts = {"numeric_answer": rewards} if components is None else components
    scores = [
        {
            **{name: row[name] for name in IDS},
            "reward": reward,
            "error": None,
            "step_rewards": None,
            **(logged or {}),
        }
        for row, reward in zip(rollouts, [each for group in rewards for each in group], strict=True)
    ]
    for label, by_group in parts.items():
        values = [each for group in by_group for each in group]
        for row, value in zip(scores, values, strict=True):
            row[f"reward_{label}"] = value
    for row, is_cut in zip(rollouts, itertools.cycle(cut)):
        row["finish_reason"] = "length" if is_cut else "stop"
        if likelihood is not None:
            count = len(row["completion_token_ids"])
            row["sampling_logprobs"] = [math.log(likelihood) / count] * count
    for kind, rows in (("prompts", prompts), ("rollouts", rollouts), ("scores", scores)):
        write_rows(kind, key, rows)
    for stage in ("prepare_prompts", "generate_rollouts", "score_rollouts"):
        write_json({"rows": len(rollouts)}, path_of(f"metrics/{stage}", key))


def store_advantages(
    key: str, rewards: Sequence[Sequence[float]], estimator: Mapping[str, Any]
) -> None:
    """What an estimator makes of the rewards that `store` was given."""
    made = build("advantages", estimator)
    assert isinstance(made, AdvantageEstimator)
    groups = [group for group, each in enumerate(rewards) for _ in each]
    found = made(advantage_inputs([each for group in rewards for each in group], groups))
    rollouts = rollout_rows(
        prompt_rows(len(rewards), key), [["?"] * len(rewards[0])] * len(rewards)
    )
    rows = [
        {
            **{name: row[name] for name in IDS},
            **dict.fromkeys(("token_advantages", "token_returns")),
            "advantage": found.advantages[place],
            "group_mean": found.group_mean[place],
            "group_std": found.group_std[place],
            "informative": bool(found.informative[place]),
            "kept": True,
        }
        for place, row in enumerate(rollouts)
    ]
    write_rows("advantages", key, rows)


def write_rows(kind: str, key: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes rows as a table, which is checked against its schema as it is written."""
    columns: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
    for name in columns:
        if name.startswith("reward_"):  # no type is to be read off nothing but nulls
            columns[name] = pa.array(columns[name], pa.float64())
    write_table(schema_of(kind).build(columns), kind, key)


def store_evaluation(
    key: str, means: Sequence[float], length: int = 3, reason: str = "stop"
) -> None:
    """The evaluation of a policy on `heldout`: one answer of so many characters per prompt, with these rewards."""
    rollouts = rollout_rows(prompt_rows(len(means), "eval"), [["x" * length]] * len(means))
    rows = [
        {
            **row,
            **{
                name: row[name].replace("eval/", "eval:heldout/")
                for name in ("rollout_id", "group_id")
            },
            "iteration": key,
            "finish_reason": reason,
            "set": "heldout",
            "reward": reward,
            "reward_numeric_answer": reward,
            "error": None,
            "step_rewards": None,
            "prompt": "?",
            "reference_answer": "1",
        }
        for row, reward in zip(rollouts, means, strict=True)
    ]
    write_rows("evaluations", key, rows)
    write_json({"rows": len(rows)}, path_of("metrics/evaluate_policy", key))


def said(name: str, params: Params | None = None, **thresholds: Any) -> list[Finding]:
    """What one check says of what is stored below the current directory."""
    check = build("doctor.checks", {"name": name, **thresholds})
    assert isinstance(check, Check)
    return list(check(chain_reading_of(run_of(params_of() if params is None else params))))
