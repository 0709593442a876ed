"""From tables to what rewards see of a rollout, a chunk at a time."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rollbook.components.rewards.base import RewardInput
from rollbook.core.errors import ArtifactError
from rollbook.core.ragged import IntArray

PROMPT_COLUMNS = ("messages", "prompt", "reference_answer")
ROLLOUT_COLUMNS = (
    "rollout_id",
    "group_id",
    "prompt_id",
    "iteration",
    "completion",
    "text",
    "greedy",
    "finish_reason",
)
TOKENS = "completion_token_ids"
NOT_OF_THE_SOURCE = frozenset(
    {"iteration", "group_id", "prompt_id", "prompt_token_ids", *PROMPT_COLUMNS}
)
BLOCK = 1024
"""Rows made at once where all are gone through."""


class StoredRows(Sequence[RewardInput]):
    """What rewards see of the rollouts of a table, made when it is looked at: the rows are never all in memory."""

    def __init__(self, prompts: pa.Table, rollouts: pa.Table) -> None:
        key = "group_id" if "group_id" in prompts.column_names else "prompt_id"
        prompts = prompts.combine_chunks()
        places = pc.index_in(rollouts[key], value_set=prompts[key].combine_chunks())
        if places.null_count:
            missing = rollouts["rollout_id"].filter(pc.is_null(places))
            raise ArtifactError(
                f"prompts of {len(missing)} of {rollouts.num_rows} rollouts are missing, such as that of {missing[0]}",
                "prompts and rollouts are of different runs; run `dvc repro`",
            )
        self._prompts = prompts
        self._rollouts = rollouts.select([*ROLLOUT_COLUMNS, TOKENS])
        self._prompt_of = places.to_numpy()

    def __len__(self) -> int:
        return int(self._rollouts.num_rows)

    @overload
    def __getitem__(self, place: int) -> RewardInput: ...
    @overload
    def __getitem__(self, place: slice) -> list[RewardInput]: ...
    def __getitem__(self, place: int | slice) -> RewardInput | list[RewardInput]:
        if isinstance(place, slice):
            return self.at(np.arange(len(self))[place])
        return self.at(np.array([range(len(self))[place]]))[0]

    def __iter__(self) -> Iterator[RewardInput]:
        for start in range(0, len(self), BLOCK):
            yield from self[start : start + BLOCK]

    def at(self, places: IntArray) -> list[RewardInput]:
        """The rows at these places."""
        return _made(*self._tables_at(places))

    def packed(self, places: IntArray) -> tuple[bytes, bytes, IntArray]:
        """The same for another process, which calls `unpacked`."""
        prompts, rollouts, prompt_of = self._tables_at(places)
        return _bytes_of(prompts), _bytes_of(rollouts), prompt_of

    def ids_at(self, places: Sequence[int]) -> list[str]:
        """Rollout ids of the rows at these places."""
        ids: list[str] = self._rollouts["rollout_id"].take(pa.array(places, pa.int64())).to_pylist()
        return ids

    def keys(self) -> pa.Table:
        """What decides the order of scoring: group, greedy, length of the id, id; and the finish reason."""
        keys = self._rollouts.select(["group_id", "greedy", "rollout_id", "finish_reason"])
        return keys.append_column("length", pc.utf8_length(keys["rollout_id"]))

    def _tables_at(self, places: IntArray) -> tuple[pa.Table, pa.Table, IntArray]:
        """Prompts and rollouts of these rows, and which prompt each rollout has."""
        asked, prompt_of = np.unique(self._prompt_of[places], return_inverse=True)
        prompts = self._prompts.take(pa.array(asked))
        return prompts, _rows_of(self._rollouts, places), prompt_of


def inputs_of(prompts: pa.Table, rollouts: pa.Table) -> StoredRows:
    """What rewards see of each rollout, in the order of `rollouts`.

    Args:
        prompts: a prompts table, or any with `prompt_id`, `messages`, `prompt`, `reference_answer`; further columns are
            the source's own. Joined by `group_id` where it has one (evaluation sets may share prompts), else by
            `prompt_id`.
        rollouts: a rollouts table, or any with its columns.

    Raises:
        ArtifactError: if the prompt of a rollout is missing.
    """
    return StoredRows(prompts, rollouts)


def rows_at(rows: Sequence[RewardInput], places: IntArray) -> list[RewardInput]:
    """The rows at these places."""
    return rows.at(places) if isinstance(rows, StoredRows) else [rows[place] for place in places]


def ids_at(rows: Sequence[RewardInput], places: Sequence[int]) -> list[str]:
    """Rollout ids of the rows at these places."""
    if isinstance(rows, StoredRows):
        return rows.ids_at(places)
    return [rows[place].rollout_id for place in places]


def packed(rows: Sequence[RewardInput], places: IntArray) -> Any:
    """The rows at these places in a form for another process."""
    if isinstance(rows, StoredRows):
        return rows.packed(places)
    return [rows[place] for place in places]


def unpacked(content: Any) -> list[RewardInput]:
    """What `packed` packed."""
    if isinstance(content, list):
        return content
    prompts, rollouts, prompt_of = content
    return _made(_table_of(prompts), _table_of(rollouts), prompt_of)


def scoring_order(rows: Sequence[RewardInput]) -> tuple[IntArray, IntArray]:
    """Rows in the order of group, greedy and id, failed generations left out; and the number of each row's group."""
    keys = rows.keys() if isinstance(rows, StoredRows) else _keys_of(rows)
    by = ("group_id", "greedy", "length", "rollout_id")
    order = pc.sort_indices(keys, [(name, "ascending") for name in by]).to_numpy()
    shown = pc.not_equal(keys["finish_reason"], "error").to_numpy()
    groups = pc.index_in(keys["group_id"], value_set=pc.unique(keys["group_id"])).to_numpy()
    return order[shown[order]].astype(np.int64), groups.astype(np.int64)


def _keys_of(rows: Sequence[RewardInput]) -> pa.Table:
    ids = [row.rollout_id for row in rows]
    return pa.table(
        {
            "group_id": pa.chunked_array([pa.array([row.group_id for row in rows], pa.string())]),
            "greedy": pa.array([row.greedy for row in rows], pa.bool_()),
            "rollout_id": pa.array(ids, pa.string()),
            "finish_reason": pa.array([row.finish_reason for row in rows], pa.string()),
            "length": pa.array([len(each) for each in ids], pa.int32()),
        }
    )


def _rows_of(table: pa.Table, places: IntArray) -> pa.Table:
    """Like `take`, which copies a whole column of many chunks for every call."""
    if not len(places) or all(column.num_chunks == 1 for column in table.columns):
        return table.take(pa.array(places))
    breaks = np.flatnonzero(np.diff(places) != 1) + 1
    runs = zip([0, *breaks], [*breaks, len(places)], strict=True)
    parts = [table.slice(places[start], end - start) for start, end in runs]
    return pa.concat_tables(parts).combine_chunks()


def _made(prompts: pa.Table, rollouts: pa.Table, prompt_of: IntArray) -> list[RewardInput]:
    asked = prompts.select(PROMPT_COLUMNS).to_pylist()
    own = [name for name in prompts.column_names if name not in NOT_OF_THE_SOURCE]
    columns = prompts.select(own).to_pylist() if own else [{} for _ in asked]
    rows = zip(
        *(rollouts[name].to_pylist() for name in ROLLOUT_COLUMNS),
        _token_lists(rollouts[TOKENS]),
        prompt_of.tolist(),
        strict=True,
    )
    return [
        RewardInput(
            **dict(zip(ROLLOUT_COLUMNS, values[:-2], strict=True)),
            completion_token_ids=values[-2],
            columns=columns[values[-1]],
            **asked[values[-1]],
        )
        for values in rows
    ]


def _token_lists(column: pa.ChunkedArray) -> list[Sequence[int]]:
    """Token ids of each row as compact arrays: Python lists would take ten times the memory."""
    lists = column.combine_chunks()
    ends = np.cumsum(pc.list_value_length(lists).to_numpy(zero_copy_only=False)).tolist()
    flat = pc.list_flatten(lists).to_numpy().astype(np.int32, copy=False)
    return [
        array("i", flat[start:end].tobytes()) for start, end in zip([0, *ends], ends, strict=False)
    ]


def _bytes_of(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _table_of(content: bytes) -> pa.Table:
    return pa.ipc.open_stream(content).read_all()
