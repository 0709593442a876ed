"""What rewards said about chunks of rows, gathered into columns of the scores table."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rollbook.components.rewards.base import Reward
from rollbook.components.rewards.logged import NUMBERS, TEXTS, TRUTHS, is_column
from rollbook.components.rewards.outcomes import Scored
from rollbook.core.errors import RewardError
from rollbook.core.ragged import IntArray
from rollbook.tables.schemas import evaluations, rescores, scores
from rollbook.tables.schemas.base import STEP_REWARDS

TAKEN = frozenset({*scores.SCHEMA.columns, *evaluations.SCHEMA.columns, *rescores.SCHEMA.columns})
"""Columns of the tables that scores are put in; a reward cannot log under these names."""
TYPES: Mapping[str, pa.DataType] = {
    NUMBERS: pa.float64(),
    TRUTHS: pa.bool_(),
    TEXTS: pa.string(),
}


class Gathered:
    """What one reward said about the rows of a table, chunk by chunk in any order.

    Attributes:
        reward: who said it.
        values: [rows] NaN where it does not apply, failed or was not asked.
        errors: text by row.
        causes: what was raised, by row; of a chunk only the first.
    """

    def __init__(self, reward: Reward, rows: int) -> None:
        self.reward = reward
        self.values: NDArray[np.float64] = np.full(rows, math.nan)
        self.errors: dict[int, str] = {}
        self.causes: dict[int, BaseException] = {}
        self.steps: list[tuple[IntArray, pa.Array]] = []
        self.kinds: dict[str, set[str]] = {}
        self.logged: dict[str, list[tuple[IntArray, pa.Array]]] = {}

    @property
    def label(self) -> str:
        """How the reward is called in messages."""
        return self.reward.title

    def add(self, rows: IntArray, scored: Scored) -> None:
        """Takes in a chunk; `rows[i]` is the row of the table that is the i-th of the chunk."""
        self.values[rows] = scored.values
        self.errors.update((int(rows[place]), text) for place, text in scored.errors.items())
        if scored.cause is not None:
            self.causes[int(rows[scored.cause[0]])] = scored.cause[1]
        if scored.steps:
            steps = [
                [{"end": end, "value": value} for end, value in sorted(each)]
                for each in scored.steps.values()
            ]
            self.steps.append((rows[list(scored.steps)], pa.array(steps, STEP_REWARDS)))
        for name, logged in scored.logged.items():
            self.kinds.setdefault(name, set()).update(logged.kinds)
            if logged.values:
                values = pa.array(list(logged.values.values()), _type(logged.kinds))
                self.logged.setdefault(name, []).append((rows[list(logged.values)], values))


def step_column(
    gathered: Sequence[Gathered], rows: int, ids_at: Callable[[Sequence[int]], Sequence[str]]
) -> pa.Array:
    """Step rewards as returned (not weighted), ordered by their end; null where a row has none.

    Args:
        gathered: of each reward.
        rows: of the table.
        ids_at: names rows.

    Raises:
        RewardError: if two rewards give steps of the same row: a later stage could not tell them apart.
    """
    owners = np.full(rows, -1)
    for number, each in enumerate(gathered):
        for places, _ in each.steps:
            twice = places[owners[places] >= 0]
            if len(twice):
                name, row = min(zip(ids_at(twice.tolist()), twice.tolist(), strict=True))
                raise RewardError(
                    f"{name}: rewards {gathered[owners[row]].label!r} and {each.label!r} both return step rewards"
                )
            owners[places] = number
    return _scattered([piece for each in gathered for piece in each.steps], rows, STEP_REWARDS)


def logged_columns(gathered: Sequence[Gathered], rows: int) -> dict[str, pa.Array]:
    """One column per logged name, null where a row does not log it.

    Numbers become float64 (not finite ones null), truth values bool, texts string.

    Raises:
        RewardError: if a name is taken, two rewards log it, or its values cannot be one column.
    """
    owners: dict[str, Gathered] = {}
    for each in gathered:
        for name in each.kinds:
            if owners.setdefault(name, each) is not each:
                raise RewardError(
                    f"rewards {owners[name].label!r} and {each.label!r} both log {name!r}",
                    "give one of them a `label`, or let it log under another name",
                )
    columns = {}
    for name in sorted(owners):
        owner = owners[name]
        _check(name, owner.label, owner.kinds[name])
        pieces = owner.logged.get(name, [])
        columns[name] = _scattered(pieces, rows, _type(owner.kinds[name]))
    return columns


def _check(name: str, label: str, kinds: set[str]) -> None:
    if name in TAKEN or re.fullmatch(scores.REWARD_PATTERN, name):
        raise RewardError(
            f"reward {label!r} logs {name!r}, which is a column of its own in the table",
            "log it under another name",
        )
    if not kinds <= TYPES.keys():
        raise RewardError(
            f"reward {label!r} logs {', '.join(sorted(kinds - TYPES.keys()))} as {name!r}; "
            "a column holds numbers, truth values or texts"
        )
    if not is_column(kinds):
        raise RewardError(f"reward {label!r} logs both {' and '.join(sorted(kinds))} as {name!r}")


def _type(kinds: set[str] | frozenset[str]) -> pa.DataType:
    """Of a column; truth values among numbers are numbers, and so is nothing at all."""
    return TYPES[next(iter(kinds))] if len(kinds) == 1 else TYPES[NUMBERS]


def _scattered(
    pieces: Sequence[tuple[IntArray, pa.Array]], rows: int, kind: pa.DataType
) -> pa.Array:
    """Pieces put where their rows are; null elsewhere."""
    if not pieces:
        return pa.nulls(rows, kind)
    places = np.full(rows, -1)
    known = np.concatenate([at for at, _ in pieces])
    places[known] = np.arange(len(known))
    values = pa.concat_arrays([values.cast(kind) for _, values in pieces])
    return values.take(pa.array(places, mask=places < 0))


def described_error(gathered: Sequence[Gathered], row: int) -> str:
    """All that went wrong with a row, in the order of the rewards."""
    return "; ".join(each.errors[row] for each in gathered if row in each.errors)
