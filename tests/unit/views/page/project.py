"""A run to make a page of, in milliseconds: iterations as training leaves them, with numbers and texts as told."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path

from benchmarks.showing import GROUP, make_iteration, make_project
from rollbook.core.hashing import md5_of
from rollbook.core.ids import BASE_KEY, PARAMS_FILE
from rollbook.core.ragged import Ragged
from rollbook.dvc.lock import LOCK_FILE
from rollbook.project.plan_file import ITERATION_STAGES
from rollbook.tables.artifacts import (
    ROOT,
    path_of,
    read_facts,
    read_json,
    rows_in,
    write_json,
    write_table,
)
from tests.unit.settings.test_params import shipped

KEYS = ("i0001", "i0002")
ROWS = 2 * GROUP
SET = "heldout"
ENVIRONMENT = {
    "git": {"commit": "5e84f275e8a103bc39bae14ac12cafec840c861f", "dirty": False},
    "cpu": "a processor",
    "cpu_count": 2,
    "gpus": [],
    "python": "3.11.7",
    "platform": "Linux",
    "packages": {"torch": "2.13.0"},
}
HOSTILE = [
    '<script>document.title = "owned"</script>',
    "<img src=x onerror=\"document.title='owned'\">",
    "</script></pre><h1>headline</h1>",
    "\u202eright to left\u202c and \u2066isolated\u2069",
    "bell \x07, escape \x1b[2J, null \x00 and a tab\t",
    "first line\nsecond line\r\n\u2028third",
    "]]><!--<style>body { display: none }</style>",
    "\u05e9\u05dc\u05d5\u05dd <a href=javascript:alert(1)>x</a> 🏳️‍🌈",
]
"""Completions that want to be more than text: one for each answer of a group."""


def make(
    keys: Sequence[str] = KEYS,
    rows: int = ROWS,
    texts: Sequence[str] | None = None,
    branch: tuple[str, str] | None = None,
) -> None:
    """Writes the run below the current directory.

    Args:
        keys: of its iterations, a straight chain.
        rows: rollouts of each.
        texts: completions, again and again; None: fifty digits each.
        branch: one iteration more, and which of `keys` it follows, under a recipe `other`.
    """
    make_project(keys, rows)
    raw = shipped()
    raw["iterations"] = {
        key: {"previous": previous, "recipe": "grpo", "reference": BASE_KEY}
        for previous, key in itertools.pairwise([BASE_KEY, *keys])
    }
    if branch is not None:
        key, previous = branch
        make_iteration(key, previous, rows)
        raw["recipes"]["other"] = {"extends": "grpo"}
        raw["iterations"][key] = {"previous": previous, "recipe": "other", "reference": BASE_KEY}
    write_params(raw)
    write_json(_evaluation(0), path_of("metrics/evaluate_policy", BASE_KEY))
    for step, key in enumerate(raw["iterations"], start=1):
        for stage in ITERATION_STAGES:
            write_json({"rows": rows}, path_of(f"metrics/{stage}", key))
        write_json(_evaluation(step), path_of("metrics/evaluate_policy", key))
        numbers = {"entropy": 1 / step, "clip_ratio/region_mean": 0.1, "grad_norm": 1.5}
        write_json({**numbers, "loss": 0.1}, path_of("metrics/update_policy", key))
        write_json(
            {"reward": 0.5, "completions/mean_length": 50.0}, path_of("metrics/score_rollouts", key)
        )
        path = path_of("run_info/update_policy", key)
        write_json({**read_json(path), "environment": ENVIRONMENT}, path)
        if texts is not None:
            say(key, texts)
    _fit_lock()


def _fit_lock() -> None:
    """Puts into dvc.lock which run_info lies here."""
    text = LOCK_FILE.read_text(encoding="utf-8")
    for file in (ROOT / "run_info").rglob("*.json"):
        entry = rf"(path: {re.escape(file.as_posix())}\n +hash: md5\n +md5: )\w+"
        text = re.sub(entry, rf"\g<1>{md5_of(file)}", text)
    LOCK_FILE.write_text(text, encoding="utf-8")


def write_params(raw: object) -> None:
    """Writes params.yaml; JSON is YAML."""
    PARAMS_FILE.write_text(json.dumps(raw), encoding="utf-8")


def say(key: str, texts: Sequence[str]) -> None:
    """Puts other completions into an iteration, with the tokens that the base policy's tokenizer has for them."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path_of("policies", BASE_KEY) / "tokenizer.json"))
    path = path_of("rollouts", key)
    facts, table = read_facts(path), rows_in(path, path)
    said = [texts[place % len(texts)] for place in range(table.num_rows)]
    ids = [each.ids for each in tokenizer.encode_batch(said, add_special_tokens=False)]
    columns = {
        "completion": said,
        "text": said,
        "completion_token_ids": Ragged.of(ids, "int32").to_column(),
        "loss_mask": Ragged.of([[True] * len(each) for each in ids], bool).to_column(),
        "sampling_logprobs": Ragged.of(
            [[-0.05 * (place % 100) for place in range(len(each))] for each in ids], "float32"
        ).to_column(),
    }
    for name, column in columns.items():
        table = table.set_column(table.column_names.index(name), name, [column])
    said_now = write_table(table, "rollouts", key, facts.inputs, facts.settings)
    path = path_of("scores", key)
    facts, table = read_facts(path), rows_in(path, path)
    inputs = {**facts.inputs, "rollouts": said_now.content_hash}
    write_table(table, "scores", key, inputs, facts.settings)


def drop(kind: str, *keys: str) -> None:
    """Removes tables, as if they had not been pulled."""
    for key in keys:
        Path(path_of(kind, key)).unlink()


def _evaluation(step: int) -> dict[str, float]:
    mean = 0.4 + 0.1 * min(step, 5)
    numbers = {"mean_at_4": mean, "greedy": mean + 0.05, "pass_at_4": mean + 0.1}
    bounds = {"": 0.0, "_low": -0.04, "_high": 0.04}
    return {
        f"eval/{SET}/{name}{bound}": value + off
        for name, value in numbers.items()
        for bound, off in bounds.items()
    }
