"""Runs reward functions on groups of rollouts and adds up what they say; for training, evaluation and re-scoring alike.

A reward that raises is a fault of the scorer, never a 0: the row gets no reward and the error's text. Groups, and rows
in a group, are always scored in the order of their ids, so the order of the table changes nothing. A greedy rollout is
scored on its own: rewards that compare siblings must say the same of the sampled ones with and without it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.errors import RewardError, RollbookError
from pipeline.rewards.base import Reward, RewardInput, RewardResult
from pipeline.rewards.columns import logged_columns, step_column
from pipeline.rewards.totals import weighted_total

OnRows = Callable[[int], None]
"""Told how many more rows are scored."""

SHOWN_ERRORS = 5
"""Different errors named when too many rows fail, each with its first row."""
MAX_ERROR_CHARACTERS = 300
ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}")


@dataclass(frozen=True)
class _Failed(RewardResult):
    """A result that stands for an exception, which is kept for its traceback."""

    cause: BaseException | None = field(default=None, compare=False)


def score_groups(
    rewards: Sequence[Reward],
    rows: Sequence[RewardInput],
    max_error_share: float = 0.0,
    on_rows: OnRows | None = None,
) -> dict[str, pa.Array]:
    """Scores all rows and adds up the rewards.

    A rollout whose generation failed (`finish_reason: error`) is not shown to rewards: none applies to it.

    Args:
        rewards: with labels that differ.
        rows: whole groups, in any order.
        max_error_share: largest share of rows that may fail.
        on_rows: told about progress.

    Returns:
        Columns of the scores table in the order of `rows`: `reward`, `error`, `step_rewards`, `reward_<label>` of each
        reward, and what they logged.

    Raises:
        RewardError: if more rows fail, or if what rewards log cannot be a column.
    """
    results = _results_of(rewards, rows, on_rows)
    components = np.array(
        [[math.nan if r.value is None else r.value for r in column] for column in results]
    ).T.reshape(len(rows), len(rewards))
    totals = weighted_total(components, [reward.weight for reward in rewards])
    errors = [
        "; ".join(result.error for result in row if result.error is not None)
        for row in zip(*results, strict=True)
    ]
    for place in np.flatnonzero(~np.isfinite(totals) & ~np.isnan(components).all(axis=1)):
        errors[place] = errors[place] or f"the weighted sum of rewards is {totals[place]}"
    failed = np.array([bool(error) for error in errors], dtype=bool)
    _stop_if_too_many(failed, errors, rows, results, max_error_share)
    return {
        "reward": pa.array(np.where(failed, np.nan, totals), from_pandas=True),
        "error": pa.array([error or None for error in errors], pa.string()),
        "step_rewards": step_column(rewards, rows, results),
        **{
            reward.column: pa.array(components[:, place], from_pandas=True)
            for place, reward in enumerate(rewards)
        },
        **logged_columns(rewards, results),
    }


def outcomes_of(reward: Reward, group: Sequence[RewardInput]) -> list[RewardResult]:
    """What `reward` says about each row of one group; what it raises, or returns wrongly, becomes the row's error.

    A reward with a `score` of its own fails for the group as a whole, any other for single rows.
    """
    whole = type(reward).score is not Reward.score
    returned: list[Any] = []
    try:
        if whole:
            returned = list(reward.score(group))
            if len(returned) != len(group):
                raise RewardError(f"returned {len(returned)} values for {len(group)} completions")
    except (Exception, SystemExit) as error:
        return [_failed(reward, error)] * len(group)
    outcomes = []
    for place, row in enumerate(group):
        try:
            outcomes.append(_checked(reward, returned[place] if whole else reward(row), row))
        except (Exception, SystemExit) as error:
            outcomes.append(_failed(reward, error))
    return outcomes


def number_of(value: Any) -> float | None:
    """A returned reward as a number: anything `float` takes, NumPy and 0-dimensional tensors included, but no text.

    Raises:
        RewardError: if it is none, or not finite.
    """
    if value is None:
        return None
    try:
        number = math.nan if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        shown = repr(value) if isinstance(value, (str, bytes, float)) else type(value).__name__
        raise RewardError(f"returned {shown[:60]}, must return a finite number or None")
    return number


def _results_of(
    rewards: Sequence[Reward], rows: Sequence[RewardInput], on_rows: OnRows | None
) -> list[list[RewardResult]]:
    """Results by reward and row."""
    results = [[RewardResult(None)] * len(rows) for _ in rewards]
    for places in _groups_of(rows):
        group = [rows[place] for place in places]
        for column, reward in zip(results, rewards, strict=True):
            for place, result in zip(places, outcomes_of(reward, group), strict=True):
                column[place] = result
        if on_rows is not None:
            on_rows(len(places))
    return results


def _groups_of(rows: Sequence[RewardInput]) -> Iterator[list[int]]:
    """Places of the rows that are scored together, in the order of ids: a group's sampled rows, then its greedy one."""
    order = sorted(
        (row.group_id, row.greedy, len(row.rollout_id), row.rollout_id, place)
        for place, row in enumerate(rows)
        if row.finish_reason != "error"
    )
    places: list[int] = []
    for rank, (*together, _, _, place) in enumerate(order):
        places.append(place)
        if rank + 1 == len(order) or order[rank + 1][:2] != tuple(together):
            yield places
            places = []


def _checked(reward: Reward, returned: Any, row: RewardInput) -> RewardResult:
    result = returned if isinstance(returned, RewardResult) else RewardResult(returned)
    if result.error is not None:
        text = f"{reward.label or reward.name}: {result.error}"
        return replace(result, value=None, steps=None, error=text)
    steps = None
    if result.steps is not None:
        steps = [(_step_end(end, row), number_of(value)) for end, value in result.steps]
        if any(value is None for _, value in steps):
            raise RewardError("returned a step without a value")
    return RewardResult(number_of(result.value), result.log, steps)  # type: ignore[arg-type]


def _step_end(end: int, row: RewardInput) -> int:
    last = len(row.completion_token_ids) - 1
    if not 0 <= end <= last:
        raise RewardError(f"returned a step that ends at token {end}; the last one is {last}")
    return int(end)


def _failed(reward: Reward, error: BaseException) -> RewardResult:
    message = error.message if isinstance(error, RollbookError) else str(error)
    message = ADDRESS.sub("0x…", " ".join(message.split()))  # the same text in every run
    text = f"{reward.label or reward.name}: {type(error).__name__}: {message}"
    return _Failed(None, error=text[:MAX_ERROR_CHARACTERS], cause=error)


def _stop_if_too_many(
    failed: np.ndarray[Any, np.dtype[np.bool_]],
    errors: Sequence[str],
    rows: Sequence[RewardInput],
    results: Sequence[Sequence[RewardResult]],
    max_error_share: float,
) -> None:
    count = int(failed.sum())
    if count <= max_error_share * len(rows):
        return
    places = sorted(np.flatnonzero(failed), key=lambda place: rows[place].rollout_id)
    alike: dict[str, list[str]] = {}
    for place in places:
        alike.setdefault(errors[place], []).append(rows[place].rollout_id)
    lines = [
        f"  - {ids[0]}{f' and {len(ids) - 1} more' if len(ids) > 1 else ''}: {error}"
        for error, ids in list(alike.items())[:SHOWN_ERRORS]
    ]
    if len(alike) > SHOWN_ERRORS:
        lines.append(f"  - … and {len(alike) - SHOWN_ERRORS} other errors")
    causes = (getattr(column[places[0]], "cause", None) for column in results)
    raise RewardError(
        "\n".join(
            [
                f"{count} of {len(rows)} rollouts ({count / len(rows):.1%}) could not be scored, "
                f"allowed are {max_error_share:.1%}",
                *lines,
            ]
        ),
        "repair the reward (--debug shows the first traceback); score_rollouts.max_error_share allows a share to fail",
    ) from next((cause for cause in causes if cause is not None), None)
