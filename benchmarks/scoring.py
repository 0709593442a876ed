"""What scoring costs: time and memory of a cheap reward over tables of different length, each in a fresh process.

`python -m benchmarks.scoring ROWS PROCESSES` measures one table and prints it as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa

from benchmarks.memory import Watch, resident_mib
from benchmarks.tables import markdown
from rollbook.rl.scoring.inputs import inputs_of
from rollbook.rl.scoring.scorer import score_groups
from tests.e2e.projects import environment
from tests.unit.components.rewards.rows import reward

GROUP = 8
TOKENS = 50
TEXT = "so the sum is what was asked for, and the answer follows: " * 4
SIZES = (100_000, 300_000, 1_000_000)


@dataclass(frozen=True)
class Measured:
    """One table.

    Attributes:
        seconds: wall time.
        table_mib: of the rollouts in memory.
        grown_mib: peak of the scoring program above what it held when it started, its result included.
        result_mib: columns that it returned.
        worker_mib: peak of the largest worker process.
    """

    rows: int
    processes: int
    seconds: float
    table_mib: float
    grown_mib: float
    result_mib: float
    worker_mib: float


def report(sizes: Sequence[int] = SIZES) -> str:
    """The table: a row per size and number of processes."""
    measured = [_in_a_fresh_process(rows, 2) for rows in sizes]
    measured.insert(1, _in_a_fresh_process(sizes[0], 0))
    rows = [
        [
            f"{each.rows:,}",
            f"{each.processes}",
            f"{each.seconds:.1f}",
            f"{each.rows / each.seconds:,.0f}",
            f"{each.table_mib:,.0f}",
            f"{each.result_mib:,.0f}",
            f"{each.grown_mib:,.0f}",
            f"{each.worker_mib:,.0f}" if each.processes else "–",
        ]
        for each in measured
    ]
    head = [
        "rows",
        "worker processes",
        "seconds",
        "rows/s",
        "table, MiB",
        "result, MiB",
        "peak above the table, MiB",
        "peak of a worker, MiB",
    ]
    return (
        "## Scoring\n\n`numeric_answer` on stored rollouts in groups of "
        f"{GROUP}, about {len(TEXT)} characters and {TOKENS} tokens each.\n\n{markdown(head, rows)}\n\n"
        "0 worker processes: all in one process. *Peak above the table* includes the result; rows are made a chunk at "
        "a time, so the rest does not grow with them."
    )


def measure(rows: int, processes: int) -> Measured:
    """Scores a table of this length in this process."""
    prompts, rollouts = tables(rows)
    before = resident_mib(os.getpid())
    watch = Watch()
    started = time.perf_counter()
    with watch:
        columns = score_groups(
            [reward("numeric_answer")], inputs_of(prompts, rollouts), processes=processes
        )
    seconds = time.perf_counter() - started
    assert columns["reward"].null_count == 0
    return Measured(
        rows,
        processes,
        seconds,
        rollouts.nbytes / 2**20,
        watch.own - before,
        sum(column.nbytes for column in columns.values()) / 2**20,
        watch.largest_child,
    )


def tables(rows: int, key: str = "i0001") -> tuple[pa.Table, pa.Table]:
    """Prompts and rollouts of an iteration, ids in no order."""
    groups = rows // GROUP
    prompt_ids = [f"{number * 2654435761 % 2**64:016x}" for number in range(groups)]
    group_ids = pa.array([f"{key}/{each}" for each in prompt_ids])
    answers = pa.array([str(number) for number in range(groups)])
    prompts = pa.table(
        {
            "group_id": group_ids,
            "prompt_id": prompt_ids,
            "messages": [[{"role": "user", "content": "3+4="}]] * groups,
            "prompt": ["3+4="] * groups,
            "reference_answer": answers,
        }
    )
    of = np.repeat(np.arange(groups), GROUP)
    texts = pa.array([f"{TEXT}{number}" for number in of])
    offsets = pa.array(np.arange(0, (len(of) + 1) * TOKENS, TOKENS, dtype=np.int32))
    return prompts, pa.table(
        {
            "rollout_id": [
                f"{group_ids[number // GROUP]}/{number % GROUP:02d}" for number in range(len(of))
            ],
            "group_id": group_ids.take(of),
            "prompt_id": pa.array(prompt_ids).take(of),
            "iteration": pa.array([key] * len(of)),
            "completion": texts,
            "text": texts,
            "greedy": np.zeros(len(of), bool),
            "finish_reason": pa.array(["stop"] * len(of)),
            "completion_token_ids": pa.ListArray.from_arrays(
                offsets, pa.array(np.zeros(len(of) * TOKENS, dtype=np.int32))
            ),
        }
    )


def _in_a_fresh_process(rows: int, processes: int) -> Measured:
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.scoring", str(rows), str(processes)],
        env=environment(),
        check=True,
        capture_output=True,
        text=True,
    )
    return Measured(**json.loads(result.stdout))


if __name__ == "__main__":
    print(json.dumps(asdict(measure(int(sys.argv[1]), int(sys.argv[2])))))
