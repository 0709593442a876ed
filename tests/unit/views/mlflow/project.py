"""A finished project on disk, made without running anything: small tables, their run_info, metrics and plan."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from ruamel.yaml import YAML

from rollbook.core.ids import BASE_KEY
from rollbook.project.plan import load_stage
from rollbook.project.plan_file import ITERATION_STAGES, ONCE_STAGES, PLAN_FILE
from rollbook.settings.config import Params
from rollbook.settings.params import read_params
from rollbook.tables.artifacts import (
    FOLDERS,
    path_of,
    read_facts,
    schema_of,
    write_folder,
    write_json,
    write_table,
)
from tests.builders import prompt_rows, rollout_rows, table
from tests.unit.settings.test_params import SHIPPED_TEXT

TEXTS = [["3", "4"], ["5", "5"], ["1", "7"]]
"""Answers to 1+2=, 2+3= and 3+4=: rewards 1 0, 1 1, 0 1."""
IDS = ("rollout_id", "group_id", "prompt_id", "iteration")


class Project:
    """The current folder as a project; one that is there already is taken as it is.

    Attributes:
        variants: what distinguishes a changed step from the one before, by (stage, key).
        texts: answers of the groups of every iteration, as pieces; the prompts are those of `prompt_rows`.
    """

    def __init__(self, count: int = 3, texts: Sequence[Sequence[str]] = TEXTS) -> None:
        self.variants: dict[tuple[str, str], str] = {}
        self.texts = texts
        self._read: tuple[bytes, Params] | None = None
        if not Path("params.yaml").exists():
            Path("params.yaml").write_text(SHIPPED_TEXT)
            self.configure({f"i{n:04d}": f"i{n - 1:04d}" for n in range(1, count + 1)})

    def configure(self, previous: Mapping[str, str], **sections: Any) -> None:
        """Sets the iterations, each with its predecessor."""
        yaml = YAML()
        content = yaml.load(Path("params.yaml").read_text())
        content["iterations"] = {
            key: {"previous": before, "recipe": "grpo", "reference": "i0000"}
            for key, before in previous.items()
        }
        for name, values in sections.items():
            content[name] = values
        with Path("params.yaml").open("w") as stream:
            yaml.dump(content, stream)

    @property
    def params(self) -> Params:
        content = Path("params.yaml").read_bytes()
        if self._read is None or self._read[0] != content:
            self._read = content, read_params()
        return self._read[1]

    def change(self, stage: str, key: str, variant: str = "changed") -> None:
        """What `check` does after an edit: the plan asks for another result of this step."""
        self.variants[stage, key] = variant
        self.plan()

    def plan(self) -> None:
        plan: dict[str, Any] = {name: self._digest(name, BASE_KEY) for name in ONCE_STAGES}
        plan[BASE_KEY] = {"evaluate_policy": self._digest("evaluate_policy", BASE_KEY)}
        for key in self.params.iterations:
            plan[key] = {name: self._digest(name, key) for name in ITERATION_STAGES}
        write_json(plan, PLAN_FILE)

    def finish(self, *keys: str) -> Project:
        """Runs, as it were, all steps of these iterations; the base's when there are none yet."""
        if not path_of("policies", BASE_KEY).exists():
            for name in (*ONCE_STAGES, "evaluate_policy"):
                self.run(name, BASE_KEY)
        for key in keys:
            for name in ITERATION_STAGES:
                self.run(name, key)
        self.plan()
        return self

    def run(self, stage: str, key: str, metrics: Mapping[str, float | None] | None = None) -> None:
        """Leaves on disk what one step leaves."""
        declared = load_stage(stage)
        inputs = {
            item.label: read_facts(item.path(key, self.params)).content_hash
            for item in declared.inputs
        }
        mark = self._digest(stage, key) + "".join(sorted(inputs.values()))
        outputs = {}
        for item in declared.outputs:
            place = key if item.key == "own" else item.key
            outputs[item.label] = _write(item.kind, place, key, mark, self.texts)
        number = int(key[-4:])
        write_json(
            _metrics(stage, number) if metrics is None else metrics,
            path_of(f"metrics/{stage}", key),
        )
        order = [*ONCE_STAGES, *ITERATION_STAGES].index(stage)
        info = {
            "finished": f"2026-01-01T{number // 60:02d}:{number % 60:02d}:{order:02d}.000+00:00",
            "seconds": {"total": 1.0},
            "peak_memory_mb": 100.0,
            "progress": [{"rate_unit": "tokens", "per_second": 50.0}],
            "environment": {
                "packages": {"torch": "2.13.0"},
                "host": "here",
                "git": {"commit": "c0ffee", "dirty": True, "patch_sha256": "ab" * 32},
            },
            "settings": declared.settings.of(self.params, key).model_dump(
                mode="json", serialize_as_any=True
            ),
            "digest": self._digest(stage, key),
            "inputs": inputs,
            "outputs": outputs,
        }
        write_json(info, path_of(f"run_info/{stage}", key))

    def _digest(self, stage: str, key: str) -> str:
        return f"{stage}@{key}:{self.variants.get((stage, key), '')}"


def _write(kind: str, place: str, key: str, mark: str, texts: Sequence[Sequence[str]]) -> str:
    """Writes an artifact whose content follows from `mark`. Returns its content hash."""
    if kind in FOLDERS:
        return write_folder(
            lambda folder: (folder / "weights.txt").write_text(mark) and None, kind, place
        ).content_hash
    return write_table(_table(kind, place, key, mark, texts), kind, place).content_hash


def _table(kind: str, place: str, key: str, mark: str, texts: Sequence[Sequence[str]]) -> pa.Table:
    prompts = prompt_rows(len(texts), key)
    rollouts = rollout_rows(prompts, texts, hashlib.sha256(mark.encode()).hexdigest())
    answers = {row["group_id"]: row["reference_answer"] for row in prompts}
    scored = [
        ({name: row[name] for name in IDS}, float(row["text"] == answers[row["group_id"]]))
        for row in rollouts
    ]
    tables: dict[str, list[dict[str, Any]]] = {
        "data": [_data_row(row, mark, place) for row in prompts],
        "prompts": prompts,
        "rollouts": rollouts,
        "scores": [{**ids, **_score(reward), "scorer": mark} for ids, reward in scored],
        "logprobs": [],
        "advantages": [{**ids, **_advantage(reward)} for ids, reward in scored],
        "pairs": [],
        "updates": [{**ids, "trained": True, "loss_share": 0.1} for ids, _ in scored],
        "history": [_asked(row["prompt_id"], key) for row in prompts if int(key[-4:])],
        "optimizer_steps": [_optimizer_step(key, number) for number in (1, 2)],
        "evaluations": [
            {**row, **_score(reward), "set": "heldout", "greedy": False, "prompt": ""}
            for row, (_, reward) in zip(rollouts, scored, strict=True)
        ],
    }
    empty = dict.fromkeys(schema_of(kind).columns)
    return table(kind, [{**empty, **row} for row in tables[kind]])


def _data_row(row: Mapping[str, Any], mark: str, place: str) -> dict[str, Any]:
    kept = {name: row[name] for name in ("prompt_id", "messages", "reference_answer")}
    return {**kept, "source": mark, "set": place}


def _score(reward: float) -> dict[str, Any]:
    return {"reward": reward, "reward_numeric_answer": reward}


def _advantage(reward: float) -> dict[str, Any]:
    return {"advantage": reward - 0.5, "informative": True, "kept": True}


def _asked(prompt_id: str, key: str) -> dict[str, Any]:
    counts = {"times_asked": int(key[-4:]), "times_informative": 1, "scored_rollouts": 2}
    ids = {"prompt_id": prompt_id, "iteration": key, "last_iteration": key}
    return {**ids, **counts, "last_informative": True}


def _optimizer_step(key: str, number: int) -> dict[str, Any]:
    """Step `number` of iteration `key`, counted along the chain, with a loss of 0.1 per step counted."""
    counted = 2 * int(key[-4:]) - 2 + number
    numbers = dict.fromkeys(("ratio_min", "ratio_mean", "ratio_max", "entropy"), 1.0)
    shares = dict.fromkeys(("grad_norm", "learning_rate", "clip_low", "clip_high"), 0.0)
    counts = {"tokens": 12, "rows": 6, "rows_skipped": 0, "epoch": 1}
    return {
        "iteration": key,
        "optimizer_step": counted,
        "loss": counted / 10,
        **numbers,
        **shares,
        **counts,
    }


def _metrics(stage: str, number: int) -> dict[str, float | None]:
    """Metrics of a step at iteration `number`: the evaluation rises by 0.1 an iteration from 0.3."""
    mean = 0.3 + number / 10
    return {
        "generate_rollouts": {"completions/mean_length": 2.0},
        "score_rollouts": {"reward": mean + 0.05, "reward_std": 0.5},
        "compute_advantages": {"frac_reward_zero_std": 0.25},
        "update_policy": {
            "loss": 0.5,
            "kl": None,
            "kl_old": 0.01,
            "entropy": 1.5,
            "clip_ratio/region_mean": 0.125,
        },
        "evaluate_policy": {
            "eval/heldout/mean_at_4": mean,
            "eval/heldout/mean_at_4_low": mean - 0.02,
            "eval/heldout/mean_at_4_high": mean + 0.02,
            "eval/heldout/greedy": mean + 0.1,
        },
    }.get(stage, {})
