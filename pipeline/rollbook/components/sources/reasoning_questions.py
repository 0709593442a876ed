"""The program that makes questions of reasoning-gym for the source `reasoning_gym`.

A process of its own, with a fixed hash seed: some tasks go through Python sets of text, whose order changes from one
process to the next. Reads a list of requests as JSON, writes a JSON line per question, and `{"failure": …}` if it
cannot.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from rollbook.components.reasoning_tasks import COLUMN, TASK_COLUMN, data_set, packed
from rollbook.components.sources.columns import on_side
from rollbook.core.ids import seed_of
from rollbook.core.process import die_with_parent

TRIES = 50
"""Questions made for each that is wanted, before the task counts as exhausted."""


def questions(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Records of different questions of one task on one side; asking for more keeps the first ones.

    Args:
        request: task, config, size, seed, split_seed, role and evaluation_share.

    Raises:
        ValueError: if the task cannot be had, has too few questions, or cannot be kept in a table.
    """
    task, size = request["task"], request["size"]
    seed = seed_of(COLUMN, request["split_seed"], request["seed"], task) % 2**32
    made = data_set(task, {**request["config"], "seed": seed, "size": size * TRIES})
    seen: set[str] = set()
    found = 0
    for place in range(size * TRIES):
        entry = made[place]
        messages = [{"role": "user", "content": entry["question"]}]
        if entry["question"] in seen or not on_side(
            messages, request["role"], request["evaluation_share"], request["split_seed"]
        ):
            continue
        seen.add(entry["question"])
        try:
            column = packed(task, request["config"], entry)
        except TypeError as error:
            raise ValueError(f"questions of {task} cannot be kept as JSON: {error}") from None
        yield {
            "messages": messages,
            "reference_answer": entry["answer"],
            TASK_COLUMN: task,
            COLUMN: column,
        }
        found += 1
        if found == size:
            return
    raise ValueError(
        f"{task} has {found} different questions for {request['role']} among {size * TRIES}; lower `size` to that"
    )


def main() -> None:
    """Answers the requests on standard input."""
    die_with_parent()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints is no question
    try:
        for request in json.load(sys.stdin):
            for question in questions(request):
                answers.write(json.dumps(question) + "\n")
    except ValueError as error:
        answers.write(json.dumps({"failure": str(error)}) + "\n")
    answers.close()


if __name__ == "__main__":
    main()
