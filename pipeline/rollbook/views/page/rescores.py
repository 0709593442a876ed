"""What other rewards said about the stored rollouts, as `rollbook rescore --stage` left it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from rollbook.project.plan_file import RESCORE_STAGE
from rollbook.project.run.run import Run
from rollbook.rl.rescoring import MOVED, most_moved
from rollbook.views.page.shown import ShownChain
from rollbook.views.show.sections import Grid, Lines, Part, share, signed
from rollbook.views.show.sections import shown as figure

MOVED_SHOWN = 12
"""Rollouts whose advantage changed most, of all iterations together."""
Named = tuple[str, list[Part]]


def rescores(shown: ShownChain) -> Iterator[Named]:
    """Every re-score by its name: numbers by iteration, then the rollouts that moved most."""
    for name in shown.run.rescore_names:
        every = {key: shown.run.metrics(RESCORE_STAGE, key, name) for key in shown.keys}
        if numbers := {key: each for key, each in every.items() if each}:
            yield name, [_by_iteration(numbers), *_moved(shown.run, name, list(numbers))]


def _by_iteration(numbers: Mapping[str, Mapping[str, Any]]) -> Grid:
    head = [
        "iteration",
        "rollouts",
        "reward",
        "re-scored",
        "rank correlation",
        "sign flips",
        "signal gained",
    ]
    head += ["signal lost", "errors"]
    rows = [
        [
            key,
            f"{each['rollouts']:,}",
            figure(each["old_reward"]),
            figure(each["reward"]),
            figure(each["rank_correlation"], 3),
            share(each["sign_flips_share"]),
            str(each["groups_gained"]),
            str(each["groups_lost"]),
            str(each["errors"]),
        ]
        for key, each in numbers.items()
    ]
    return Grid(head, rows, head[1:])


def _moved(run: Run, name: str, keys: Sequence[str]) -> list[Part]:
    found = (run.find_table(f"rescores/{name}", key) for key in keys)
    tables = [table.all(MOVED) for table in found if table is not None]
    if not tables:
        return [Lines(["The tables are not on disk; `rollbook pull` brings them."])]
    moved = most_moved(
        pa.concat_tables(most_moved(each, MOVED_SHOWN) for each in tables), MOVED_SHOWN
    )
    if not moved.num_rows:
        return [Lines(["No advantage changes."])]
    head = ["rollout", "reward", "re-scored", "advantage", "re-scored advantage"]
    rows = [
        [
            row["rollout_id"],
            figure(row["old_reward"]),
            figure(row["reward"]),
            signed(row["old_advantage"]),
            signed(row["advantage"]),
        ]
        for row in moved.to_pylist()
    ]
    return [Lines(["Rollouts whose advantage changes most:"]), Grid(head, rows, head[1:])]
