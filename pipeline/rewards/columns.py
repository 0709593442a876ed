"""What rewards return beside their number, as columns of the scores table."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from pipeline.errors import RewardError
from pipeline.rewards.base import Reward, RewardInput, RewardResult
from pipeline.schemas import evaluations, scores
from pipeline.schemas.base import STEP_REWARDS

Results = Sequence[Sequence[RewardResult]]
"""By reward and row."""

TAKEN = frozenset({*scores.SCHEMA.columns, *evaluations.SCHEMA.columns})
"""Columns of the tables that scores are put in; a reward cannot log under these names."""


def logged_columns(rewards: Sequence[Reward], results: Results) -> dict[str, pa.Array]:
    """One column per logged name, null where a row does not log it.

    Numbers become float64 (not finite ones null), truth values bool, texts string.

    Raises:
        RewardError: if a name is taken, two rewards log it, or its values cannot be one column.
    """
    owners: dict[str, str] = {}
    values: dict[str, list[Any]] = {}
    for reward, column in zip(rewards, results, strict=True):
        label = reward.label or reward.name
        for place, result in enumerate(column):
            for name, value in result.log.items():
                if owners.setdefault(name, label) != label:
                    raise RewardError(
                        f"rewards {owners[name]!r} and {label!r} both log {name!r}",
                        "give one of them a `label`, or let it log under another name",
                    )
                if name not in values:
                    values[name] = [None] * len(column)
                values[name][place] = value
    return {name: _typed(name, owners[name], values[name]) for name in sorted(values)}


def step_column(
    rewards: Sequence[Reward], rows: Sequence[RewardInput], results: Results
) -> pa.Array:
    """Step rewards as returned (not weighted), ordered by their end; null where a row has none.

    Raises:
        RewardError: if two rewards give steps of the same row: a later stage could not tell them apart.
    """
    steps: list[list[dict[str, Any]] | None] = [None] * len(rows)
    owners = [""] * len(rows)
    for reward, column in zip(rewards, results, strict=True):
        for place, result in enumerate(column):
            if result.steps is None:
                continue
            label = reward.label or reward.name
            if steps[place] is not None:
                raise RewardError(
                    f"{rows[place].rollout_id}: rewards {owners[place]!r} and {label!r} both return step rewards"
                )
            owners[place] = label
            steps[place] = [{"end": end, "value": value} for end, value in sorted(result.steps)]
    return pa.array(steps, STEP_REWARDS)


def _typed(name: str, label: str, values: Sequence[Any]) -> pa.Array:
    if name in TAKEN or re.fullmatch(scores.REWARD_PATTERN, name):
        raise RewardError(
            f"reward {label!r} logs {name!r}, which is a column of its own in the table",
            "log it under another name",
        )
    plain = [value.item() if hasattr(value, "item") else value for value in values]
    kinds = {_kind(value) for value in plain if value is not None}
    if not kinds <= KINDS.keys():
        raise RewardError(
            f"reward {label!r} logs {', '.join(sorted(kinds - KINDS.keys()))} as {name!r}; "
            "a column holds numbers, truth values or texts"
        )
    if kinds == {"truth values", "numbers"}:
        kinds = {"numbers"}
    if len(kinds) > 1:
        raise RewardError(f"reward {label!r} logs both {' and '.join(sorted(kinds))} as {name!r}")
    kind = kinds.pop() if kinds else "numbers"
    if kind == "numbers":
        plain = [_finite(value) for value in plain]
    return pa.array(plain, KINDS[kind])


KINDS: Mapping[str, pa.DataType] = {
    "numbers": pa.float64(),
    "truth values": pa.bool_(),
    "texts": pa.string(),
}


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "truth values"
    if isinstance(value, (int, float)):
        return "numbers"
    return "texts" if isinstance(value, str) else f"a {type(value).__name__}"


def _finite(value: float | None) -> float | None:
    if value is None:
        return None
    try:
        number = float(value)
    except OverflowError:  # an int beyond the range of float
        return None
    return number if math.isfinite(number) else None
