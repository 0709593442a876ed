"""Runs reward functions on groups of rollouts and adds up what they say; for training, evaluation and re-scoring alike.

A reward that raises is a fault of the scorer, never a 0: the row gets no reward and the error's text. Groups, and rows
in a group, are always scored in the order of their ids, so the order of the table changes nothing. A greedy rollout is
scored on its own: rewards that compare siblings must say the same of the sampled ones with and without it.

Many rows, and rewards with a time limit, are scored in worker processes (`workers.py`), which say the same as this one
and whose end is an error of a row, not of the run.
The exception is a function that remembers earlier calls in globals: each process remembers its own. Such a reward
declares `in_main_process`, or is run with `runtime.scoring_processes: 0`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rollbook.components.rewards.base import Reward, RewardInput, limit_of, parts_of
from rollbook.components.rewards.outcomes import OnRows, prepare, scored
from rollbook.core.errors import RewardError
from rollbook.core.process import processors
from rollbook.core.ragged import IntArray
from rollbook.core.registry import build
from rollbook.rl.scoring.columns import Gathered, described_error, logged_columns, step_column
from rollbook.rl.scoring.inputs import ids_at, packed, rows_at, scoring_order
from rollbook.rl.scoring.totals import weighted_total
from rollbook.rl.scoring.workers import Chunk, Workers

Processes = int | Literal["auto"]

SHOWN_ERRORS = 5
"""Different errors named when too many rows fail, each with its first row."""
FEW_ROWS = 4096
"""Up to here `auto` starts no processes for rewards without a time limit: a start takes longer than such a reward."""
CHUNK_ROWS = 1024
SLOW_CHUNK_ROWS = 64
"""The same for rewards with a time limit: less to do again when a process is killed."""
CHUNKS_PER_PROCESS = 8
"""At least, where there are rows enough, so that all processes end at about the same time."""


def score_groups(
    rewards: Sequence[Reward],
    rows: Sequence[RewardInput],
    max_error_share: float = 0.0,
    on_rows: OnRows | None = None,
    processes: Processes = "auto",
) -> dict[str, pa.Array]:
    """Scores all rows once; see `Scorer`, which is kept where there are more tables than one."""
    with Scorer(rewards, processes) as scorer:
        return scorer.score(rows, max_error_share, on_rows)


class Scorer:
    """Scores rows and adds up the rewards. Use as a context manager: worker processes end with it.

    Args:
        rewards: with labels that differ.
        processes: worker processes at most, `auto` for one per processor and none for few rows. With 0 all is scored in
            this process, where no time limit holds.
    """

    def __init__(self, rewards: Sequence[Reward], processes: Processes = "auto") -> None:
        self._rewards = rewards
        self._processes = processes
        self._limited = any(limit_of(reward) is not None for reward in rewards)
        self._movable = [number for number, reward in enumerate(rewards) if _is_movable(reward)]
        self._workers: Workers | None = None
        self._is_prepared = False

    def __enter__(self) -> Scorer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._workers is not None:
            self._workers.__exit__(kind, error, trace)

    def score(
        self,
        rows: Sequence[RewardInput],
        max_error_share: float = 0.0,
        on_rows: OnRows | None = None,
    ) -> dict[str, pa.Array]:
        """Scores all rows.

        A rollout whose generation failed (`finish_reason: error`) is not shown to rewards: none applies to it.

        Args:
            rows: whole groups, in any order.
            max_error_share: largest share of rows that may fail.
            on_rows: told about progress.

        Returns:
            Columns of the scores table in the order of `rows`: `reward`, `error`, `step_rewards`, `reward_<label>` of
            each reward, and what they logged.

        Raises:
            RewardError: if more rows fail, if what rewards log cannot be a column, or if a reward cannot be loaded.
        """
        gathered = self._gathered(rows, on_rows)
        components = np.column_stack([each.values for each in gathered])
        totals = weighted_total(components, [reward.weight for reward in self._rewards])
        errors = {row: described_error(gathered, row) for each in gathered for row in each.errors}
        for place in np.flatnonzero(~np.isfinite(totals) & ~np.isnan(components).all(axis=1)):
            errors.setdefault(int(place), f"the weighted sum of rewards is {totals[place]}")
        _stop_if_too_many(errors, rows, gathered, max_error_share)
        totals[list(errors)] = np.nan
        return {
            "reward": _numbers(totals),
            "error": pa.array([errors.get(place) for place in range(len(rows))], pa.string()),
            "step_rewards": step_column(gathered, len(rows), lambda places: ids_at(rows, places)),
            **{each.reward.column: _numbers(each.values) for each in gathered},
            **logged_columns(gathered, len(rows)),
        }

    def _gathered(self, rows: Sequence[RewardInput], on_rows: OnRows | None) -> list[Gathered]:
        gathered = [Gathered(reward, len(rows)) for reward in self._rewards]
        moved = self._moved(len(rows))
        here = [number for number in range(len(gathered)) if number not in moved]
        order, groups = scoring_order(rows)
        if moved and len(order):
            # Progress counts rows, and the rewards that stay here are the slower ones.
            told = None if here else on_rows
            self._score_elsewhere([gathered[number] for number in moved], rows, order, groups, told)
        if here:
            self._score_here([gathered[number] for number in here], rows, order, groups, on_rows)
        return gathered

    def _moved(self, rows: int) -> list[int]:
        """Rewards that worker processes score."""
        if self._processes == 0 or (
            self._processes == "auto" and rows <= FEW_ROWS and not self._limited
        ):
            return []
        return self._movable

    def _score_here(
        self,
        gathered: Sequence[Gathered],
        rows: Sequence[RewardInput],
        order: IntArray,
        groups: IntArray,
        on_rows: OnRows | None,
    ) -> None:
        if not self._is_prepared:
            prepare([each.reward for each in gathered])
            self._is_prepared = True
        for chunk in _chunks(order, groups, CHUNK_ROWS):
            inputs = rows_at(rows, chunk.rows)
            for each in gathered:
                told = on_rows if each is gathered[-1] else None
                with contextlib.chdir(os.curdir):  # some rewards leave the folder
                    answer = scored(each.reward, inputs, on_rows=told)
                each.add(chunk.rows, answer)

    def _score_elsewhere(
        self,
        gathered: Sequence[Gathered],
        rows: Sequence[RewardInput],
        order: IntArray,
        groups: IntArray,
        on_rows: OnRows | None,
    ) -> None:
        processes = processors() if self._processes == "auto" else self._processes
        if self._workers is None:
            self._workers = Workers([each.reward for each in gathered], processes)
        share = len(order) // (processes * CHUNKS_PER_PROCESS)
        most = SLOW_CHUNK_ROWS if self._limited else CHUNK_ROWS
        chunks = list(_chunks(order, groups, min(most, max(share, SLOW_CHUNK_ROWS))))
        for done, answers in self._workers.scored(
            chunks, len(chunks), lambda places: packed(rows, places)
        ):
            for each, answer in zip(gathered, answers, strict=True):
                each.add(done, answer)
            if on_rows is not None:
                on_rows(len(done))


def _is_movable(reward: Reward) -> bool:
    """Whether worker processes can score it: it wants to be there, and its settings are enough to build it.

    Raises:
        RewardError: if its time limit could not hold.
    """
    if any(part.in_main_process for part in parts_of(reward)):
        return False
    try:
        again = build("rewards", reward.settings())
    except (TypeError, ValueError):
        again = None
    if type(again) is type(reward) and again.settings() == reward.settings():
        return True
    if limit_of(reward) is not None:
        raise RewardError(
            f"reward {reward.title!r} has a time limit, which holds in worker processes only, and "
            "cannot be built there from its settings",
            'name it by its file, as in {path: "my_rewards.py:Class"}',
        )
    return False


def _chunks(order: IntArray, groups: IntArray, rows: int) -> Iterator[Chunk]:
    """Whole groups of at least `rows` rows together, in order."""
    own = groups[order]
    ends = [*(np.flatnonzero(np.diff(own)) + 1).tolist(), len(order)]
    start = 0
    for end in ends:
        if end - start >= rows or (end == len(order) and end > start):
            yield Chunk(order[start:end], own[start:end])
            start = end


def _numbers(values: NDArray[np.float64]) -> pa.Array:
    return pa.array(values, from_pandas=True)


def _stop_if_too_many(
    errors: dict[int, str],
    rows: Sequence[RewardInput],
    gathered: Sequence[Gathered],
    max_error_share: float,
) -> None:
    count = len(errors)
    if count <= max_error_share * len(rows):
        return
    ids = dict(zip(errors, ids_at(rows, list(errors)), strict=True))
    places = sorted(errors, key=lambda place: ids[place])
    alike: dict[str, list[str]] = {}
    for place in places:
        alike.setdefault(errors[place], []).append(ids[place])
    lines = [
        f"  - {same[0]}{f' and {len(same) - 1} more' if len(same) > 1 else ''}: {error}"
        for error, same in list(alike.items())[:SHOWN_ERRORS]
    ]
    if len(alike) > SHOWN_ERRORS:
        lines.append(f"  - … and {len(alike) - SHOWN_ERRORS} other errors")
    causes = (each.causes.get(places[0]) for each in gathered)
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
