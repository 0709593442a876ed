"""What a reward says about rows, checked: the part of scoring that also runs in worker processes.

A reward that raises is a fault of the scorer, never a 0: the row gets no reward and the error's text.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.components.rewards.base import Reward, RewardInput, RewardResult, parts_of
from rollbook.components.rewards.logged import Logged, logged_of, storable
from rollbook.core.errors import RewardError, RollbookError
from rollbook.core.renamed import with_new_names

BeforeCall = Callable[[int, int], None]
"""Told before each call of a reward: place of its first row, number of rows. What it raises is the call's outcome."""

OnRows = Callable[[int], None]
"""Told how many more rows are scored."""

MAX_ERROR_CHARACTERS = 300
ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}")


@dataclass(frozen=True)
class _Failed(RewardResult):
    """A result that stands for an exception, which is kept for its traceback."""

    cause: BaseException | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Scored:
    """What one reward says about some rows, in a form that is small and goes from process to process.

    Attributes:
        values: [rows] numbers, NaN where it does not apply or failed.
        errors: text by place.
        steps: (end token index, value) pairs by place.
        logged: by name.
        cause: what was raised first, and at which place; None if nothing was.
    """

    values: NDArray[np.float64]
    errors: Mapping[int, str]
    steps: Mapping[int, Sequence[tuple[int, float]]]
    logged: Mapping[str, Logged]
    cause: tuple[int, BaseException] | None = None


def prepare(rewards: Sequence[Reward]) -> None:
    """Lets every reward load what it needs.

    Raises:
        RewardError: if one cannot.
    """
    for reward in rewards:
        for part in parts_of(reward):
            try:
                part.prepare()
            except (Exception, SystemExit) as error:
                raise RewardError(f"reward {_failed(reward, error).error}") from error


def scored(
    reward: Reward,
    rows: Sequence[RewardInput],
    before: BeforeCall | None = None,
    on_rows: OnRows | None = None,
) -> Scored:
    """Scores rows that are whole groups, in the order of `rollbook.rl.scoring.inputs.scoring_order`."""
    values = np.full(len(rows), math.nan)
    errors: dict[int, str] = {}
    steps: dict[int, Sequence[tuple[int, float]]] = {}
    logged: dict[str, dict[int, Any]] = {}
    cause = None
    _look_ahead(reward, rows)
    for places in _places_by_group(rows):
        told = None if before is None else _translated(before, places)
        for place, result in zip(
            places, outcomes_of(reward, [rows[place] for place in places], told), strict=True
        ):
            if result.value is not None:
                values[place] = result.value
            if result.error is not None:
                errors[place] = result.error
                if cause is None and isinstance(result, _Failed) and result.cause is not None:
                    cause = (place, result.cause)
            if result.steps is not None:
                steps[place] = result.steps
            for name, value in result.log.items():
                logged.setdefault(storable(str(name)), {})[place] = value
        if on_rows is not None:
            on_rows(len(places))
    plain = {name: logged_of(given) for name, given in logged.items()}
    return Scored(values, errors, steps, plain, cause)


def outcomes_of(
    reward: Reward, group: Sequence[RewardInput], before: BeforeCall | None = None
) -> list[RewardResult]:
    """What `reward` says about each row of one group; what it raises, or returns wrongly, becomes the row's error.

    A reward with a `score` of its own fails for the group as a whole, any other for single rows.
    """
    whole = type(reward).score is not Reward.score
    returned: list[Any] = []
    try:
        if whole:
            if before is not None:
                before(0, len(group))
            returned = list(reward.score(group))
            if len(returned) != len(group):
                raise RewardError(f"returned {len(returned)} values for {len(group)} completions")
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # some libraries raise no Exception, such as panics of Rust
        return [_failed(reward, error)] * len(group)
    outcomes = []
    for place, row in enumerate(group):
        try:
            if not whole and before is not None:
                before(place, 1)
            outcomes.append(_checked(reward, returned[place] if whole else reward(row), row))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
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


def _places_by_group(rows: Sequence[RewardInput]) -> Iterator[list[int]]:
    """Places of the rows that are scored together: a group's sampled rows, then its greedy one."""
    together = groupby(range(len(rows)), lambda place: (rows[place].group_id, rows[place].greedy))
    return (list(places) for _, places in together)


def _look_ahead(reward: Reward, rows: Sequence[RewardInput]) -> None:
    for part in parts_of(reward):
        # What goes wrong here goes wrong in `score` too: there it is the outcome of its rows.
        with contextlib.suppress(Exception):
            part.look_ahead(rows)


def _translated(before: BeforeCall, places: Sequence[int]) -> BeforeCall:
    return lambda place, count: before(places[place], count)


def _checked(reward: Reward, returned: Any, row: RewardInput) -> RewardResult:
    result = returned if isinstance(returned, RewardResult) else RewardResult(returned)
    if result.error is not None:
        text = f"{reward.title}: {result.error}"
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


def error_text(error: BaseException) -> str:
    """Type and message of an exception on one line, the same in every run."""
    try:
        message = error.message if isinstance(error, RollbookError) else with_new_names(error)
    except Exception as fault:
        message = f"its text cannot be read: {type(fault).__name__}"
    message = storable(ADDRESS.sub("0x…", " ".join(message.split())))
    return f"{type(error).__name__}: {message}"[:MAX_ERROR_CHARACTERS]


def _failed(reward: Reward, error: BaseException) -> RewardResult:
    text = f"{reward.title}: {error_text(error)}"
    return _Failed(None, error=text[:MAX_ERROR_CHARACTERS], cause=error)
