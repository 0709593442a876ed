"""Tables of one iteration as arrays: rows in the order of the rollouts, labels of groups, numbers, lists of tokens.

Every join of a table with the rollouts, in training, in re-scoring and in what only reads, goes through `aligned`.
"""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rollbook.core.errors import ArtifactError
from rollbook.core.ragged import IntArray, Ragged


def aligned(table: pa.Table, rollouts: pa.Table, kind: str) -> pa.Table:
    """The rows of a table in the order of the rollouts.

    Args:
        table: one row per rollout, with a `rollout_id`.
        rollouts: [R] rows.
        kind: of the table, for the error.

    Raises:
        ArtifactError: if the two do not name the same rollouts.
    """
    places = pc.index_in(rollouts["rollout_id"], value_set=table["rollout_id"].combine_chunks())
    if places.null_count or table.num_rows != rollouts.num_rows:
        missing = rollouts["rollout_id"].filter(pc.is_null(places)).slice(0, 1).to_pylist()
        raise ArtifactError(
            f"{kind} ({table.num_rows} rows) and rollouts ({rollouts.num_rows} rows) do not name the same rollouts"
            + (f"; {missing[0]} is not in {kind}" if missing else ""),
            "run `dvc repro`: one of them is of another run",
        )
    if np.array_equal(places.to_numpy(), np.arange(table.num_rows)):
        return table  # as stages write it; `take` would copy every token
    return table.take(places)


def group_labels(rollouts: pa.Table) -> IntArray:
    """[R] integer label of each rollout's group, in order of appearance."""
    encoded = rollouts["group_id"].combine_chunks().dictionary_encode()
    labels: IntArray = encoded.indices.to_numpy().astype(np.int64)
    return labels


def numbers_in(column: pa.ChunkedArray) -> NDArray[np.float64]:
    """A column of numbers or truth values as float64, null as NaN."""
    numbers: NDArray[np.float64] = pc.fill_null(pc.cast(column, pa.float64()), math.nan).to_numpy()
    return numbers


def per_token(table: pa.Table, name: str, rollouts: pa.Table) -> Ragged:
    """A list column with one item per completion token; a null is a list of zeros.

    Args:
        table: [R] rows in the order of the rollouts.
        name: of the column.
        rollouts: [R] rows; the lists of `loss_mask` are as long as the completions.

    Raises:
        ArtifactError: if a list is not as long as its completion.
    """
    column = table[name]
    lists, valid = Ragged.from_column(column), pc.is_valid(column).to_numpy()
    lengths = pc.list_value_length(rollouts["loss_mask"]).to_numpy().astype(np.int64)
    if (wrong := np.flatnonzero(valid & (lists.lengths != lengths))).size:
        row = int(wrong[0])
        raise ArtifactError(
            f"{name} of {rollouts['rollout_id'][row]} has {lists.lengths[row]} items, "
            f"its completion {lengths[row]} tokens",
            "run `dvc repro`: one of the two is of another run",
        )
    if valid.all():
        return lists
    filled = Ragged(np.zeros(lengths.sum(), lists.values.dtype), lengths)
    filled.values[filled.places(np.flatnonzero(valid))] = lists.values
    return filled
