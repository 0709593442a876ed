"""What `rollbook rescore` costs over iterations on disk: time and memory of the command in its own process."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from benchmarks import scoring
from benchmarks.memory import Watch, peak_mib
from benchmarks.tables import markdown
from rollbook.core.ids import PARAMS_FILE
from rollbook.core.ragged import Ragged
from rollbook.core.yaml import flow
from rollbook.rl.scoring.scorer import FEW_ROWS
from rollbook.tables.artifacts import schema_of, write_table
from rollbook.tables.schemas.rollouts import IDS
from tests.e2e.projects import environment
from tests.unit.settings.test_params import shipped

ROWS = 10_000
"""Rollouts of an iteration."""
SIZES = (1, 10, 30, 100)
"""Iterations re-scored by one command."""
LARGE = 300_000
"""Rollouts of the one iteration that is larger than the others."""
LARGE_KEY = "large0001"
REWARD = "{name: numeric_answer, mode: lenient}"
"""Reads to the end of the text."""


@dataclass(frozen=True)
class Measured:
    """One command.

    Attributes:
        seconds: wall time, from the start of the process to its end.
        peak_mib: of the command itself.
        worker_mib: of its largest scoring process.
    """

    rows: int
    iterations: int
    seconds: float
    peak_mib: float
    worker_mib: float


def report(sizes: Sequence[int] = SIZES, rows: int = ROWS, large: int = LARGE) -> str:
    """The table: a row per command."""
    keys = [f"i{number:04d}" for number in range(1, max(sizes) + 1)]
    with TemporaryDirectory() as folder, contextlib.chdir(folder):
        _settings([*keys, LARGE_KEY])
        for key in keys:
            store(key, rows)
        measured = [_measured(keys[:size], rows) for size in sizes]
        store(LARGE_KEY, large)
        measured.append(_measured([LARGE_KEY], large))
    lines = [
        [
            f"{each.rows:,}",
            f"{each.iterations}",
            f"{each.seconds:.1f}",
            f"{each.rows / each.seconds:,.0f}",
            f"{each.peak_mib:,.0f}",
            f"{each.worker_mib:,.0f}" if each.worker_mib else "–",
        ]
        for each in measured
    ]
    head = [
        "rollouts",
        "iterations",
        "seconds",
        "rollouts/s",
        "peak of the command, MiB",
        "peak of a worker, MiB",
    ]
    return (
        f'## Re-scoring\n\n`rollbook rescore "{REWARD}"` over iterations on disk, rollouts as above, with log-probs of '
        "policy and reference. From the start of the process to its end: imports, reading and checking five tables of "
        "each iteration, scoring, estimating, printing. None of the iterations is finished, so that nothing is sent to "
        f"MLflow; it is imported.\n\n{markdown(head, lines)}\n\n"
        "An iteration is let go before the next is read: memory follows the largest iteration, not their number. "
        f"Scoring processes are used from {FEW_ROWS + 1:,} rollouts an iteration."
    )


def store(key: str, rows: int) -> None:
    """Writes the tables of an iteration below the current directory.

    Two rollouts in three are right; every other one had a reward of 1.
    """
    prompts, rollouts = scoring.tables(rows, key)
    ids = {name: rollouts[name] for name in IDS}
    index = np.arange(rollouts.num_rows) % scoring.GROUP
    texts = [
        f"{scoring.TEXT}{place // scoring.GROUP + (place % 3 == 0)}"
        for place in range(rollouts.num_rows)
    ]
    lengths = np.full(rollouts.num_rows, scoring.TOKENS)

    def tokens(value: object, dtype: type) -> pa.Array:
        return Ragged(np.full(lengths.sum(), value, dtype), lengths).to_column()

    def nothing(name: str, kind: str) -> pa.Array:
        return pa.nulls(rollouts.num_rows, schema_of(kind).columns[name].dtype)

    old = (index % 2).astype(float)
    content = {
        "prompts": {
            **{name: prompts[name] for name in prompts.column_names},
            "iteration": [key] * prompts.num_rows,
            "prompt_token_ids": [[1, 2, 3]] * prompts.num_rows,
        },
        "rollouts": {
            **{name: rollouts[name] for name in rollouts.column_names},
            "completion": texts,
            "text": texts,
            "sample_index": index,
            "seed": np.arange(rollouts.num_rows),
            "loss_mask": tokens(True, bool),
            "sampling_logprobs": tokens(-0.5, np.float32),
            "policy_digest": ["digest"] * rollouts.num_rows,
        },
        "scores": {
            **ids,
            "reward": old,
            "error": nothing("error", "scores"),
            "step_rewards": nothing("step_rewards", "scores"),
            "reward_numeric_answer": old,
        },
        "logprobs": {
            **ids,
            "old_logprobs": tokens(-0.5, np.float32),
            "ref_logprobs": tokens(-0.51, np.float32),
            "values": nothing("values", "logprobs"),
            "entropies": nothing("entropies", "logprobs"),
        },
        "advantages": {
            **ids,
            "advantage": 2 * old - 1,
            "token_advantages": nothing("token_advantages", "advantages"),
            "token_returns": nothing("token_returns", "advantages"),
            "group_mean": np.full(rollouts.num_rows, 0.5),
            "group_std": np.full(rollouts.num_rows, 0.5),
            "informative": np.ones(rollouts.num_rows, bool),
            "kept": np.ones(rollouts.num_rows, bool),
        },
    }
    for kind, columns in content.items():
        write_table(schema_of(kind).build(columns), kind, key)


def _settings(keys: Sequence[str]) -> None:
    """The shipped params.yaml with these iterations."""
    raw = shipped()
    raw["iterations"] = {
        key: {"previous": previous, "recipe": "grpo", "reference": "i0000"}
        for previous, key in itertools.pairwise(["i0000", *keys])
    }
    lines = [f"{name}: {flow(value)}" for name, value in raw.items()]
    PARAMS_FILE.write_text("\n".join(lines), encoding="utf-8")


def _measured(keys: Sequence[str], rows: int) -> Measured:
    started = time.perf_counter()
    command = ["rollbook", "rescore", REWARD, "--iterations", ",".join(keys)]
    with (
        Path("said.txt").open("w") as said,
        subprocess.Popen(command, env=environment(), stdout=said, stderr=said) as process,
        Watch(process.pid, peak_mib) as watch,
    ):
        code = process.wait()
    seconds = time.perf_counter() - started
    text = Path("said.txt").read_text()
    assert code == 0, text
    assert all(key in text for key in keys), text
    return Measured(rows * len(keys), len(keys), seconds, watch.own, watch.largest_child)


if __name__ == "__main__":
    print(report())
