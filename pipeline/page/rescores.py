"""What other rewards said about the stored rollouts, as `rollbook rescore --stage` left it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from pipeline.artifacts import ROOT, path_of, read_json
from pipeline.page.run import Run
from pipeline.rescoring import MOVED, most_moved
from pipeline.showing.sections import Grid, Lines, Part, share, shown, signed
from pipeline.showing.tables import stored

KIND = "rescores"
MOVED_SHOWN = 12
"""Rollouts whose advantage changed most, of all iterations together."""
Named = tuple[str, list[Part]]


def rescores(run: Run) -> Iterator[Named]:
    """Every re-score by its name: numbers by iteration, then the rollouts that moved most."""
    for name in sorted(folder.name for folder in (ROOT / KIND).glob("*/")):
        kind = f"{KIND}/{name}"
        numbers = {
            key: read_json(path)
            for key in run.chain
            if (path := path_of(kind, key).with_suffix(".json")).exists()
        }
        if numbers:
            yield name, [_by_iteration(numbers), *_moved(kind, list(numbers))]


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
            shown(each["old_reward"]),
            shown(each["reward"]),
            shown(each["rank_correlation"], 3),
            share(each["sign_flips_share"]),
            str(each["groups_gained"]),
            str(each["groups_lost"]),
            str(each["errors"]),
        ]
        for key, each in numbers.items()
    ]
    return Grid(head, rows, head[1:])


def _moved(kind: str, keys: Sequence[str]) -> list[Part]:
    tables = [table.all(MOVED) for key in keys if (table := stored(kind, key))]
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
            shown(row["old_reward"]),
            shown(row["reward"]),
            signed(row["old_advantage"]),
            signed(row["advantage"]),
        ]
        for row in moved.to_pylist()
    ]
    return [Lines(["Rollouts whose advantage changes most:"]), Grid(head, rows, head[1:])]
