"""Lists of unequal length, one behind the other: how tokens of completions are held in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Ragged:
    """Lists of unequal length, one behind the other.

    Attributes:
        values: [total] all items.
        lengths: [B] items of each list.
    """

    values: NDArray[Any]
    lengths: IntArray

    @classmethod
    def of(cls, lists: Sequence[Any], dtype: Any = np.float64) -> Ragged:
        """From any sequences, such as lists of lists."""
        lengths = np.array([len(each) for each in lists], dtype=np.int64)
        parts = [np.asarray(each, dtype=dtype) for each in lists]
        return cls(np.concatenate(parts) if parts else np.empty(0, dtype), lengths)

    @classmethod
    def from_column(cls, column: pa.ChunkedArray) -> Ragged:
        """A list column of a table; a null is an empty list."""
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64)
        return cls(pc.list_flatten(column).to_numpy(), lengths)

    def to_column(self, valid: NDArray[np.bool_] | None = None) -> pa.Array:
        """A list column; null where not `valid` ([B], default: all are)."""
        valid = np.ones(len(self.lengths), bool) if valid is None else valid
        shown = self.rows(np.flatnonzero(valid))
        offsets = np.concatenate([[0], np.cumsum(np.where(valid, self.lengths, 0))])
        return pa.ListArray.from_arrays(
            pa.array(offsets.astype(np.int32)), pa.array(shown.values), mask=pa.array(~valid)
        )

    @cached_property
    def starts(self) -> IntArray:
        """[B] place in `values` of each list's first item."""
        return np.cumsum(self.lengths) - self.lengths

    @cached_property
    def row_of(self) -> IntArray:
        """[total] number of the list that each item belongs to."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    def places(self, index: IntArray) -> IntArray:
        """Where in `values` the items of the lists at `index` are, in that order."""
        lengths = self.lengths[index]
        starts_there = np.cumsum(lengths) - lengths
        return np.arange(lengths.sum()) + np.repeat(self.starts[index] - starts_there, lengths)

    def rows(self, index: IntArray) -> Ragged:
        """The lists at `index`, in that order."""
        return Ragged(self.values[self.places(index)], self.lengths[index])

    def key_of(self, index: int) -> bytes:
        """The items of one list as bytes: the same for equal lists of one type."""
        start = self.starts[index]
        return self.values[start : start + self.lengths[index]].tobytes()

    def padded(self, fill: Any) -> NDArray[Any]:
        """[B, T] with `fill` behind the shorter lists; T is the largest length."""
        mask = mask_of(self.lengths)
        grid = np.full(mask.shape, fill, dtype=self.values.dtype)
        grid[mask] = self.values
        return grid

    def counts(self) -> IntArray:
        """[B] True items of each list of booleans."""
        before = np.concatenate([[0], np.cumsum(self.values, dtype=np.int64)])
        return before[self.starts + self.lengths] - before[self.starts]

    def sums(self) -> NDArray[np.float64]:
        """[B] sum of each list, in float64."""
        return np.bincount(self.row_of, self.values, len(self.lengths)).astype(np.float64)


def mask_of(lengths: IntArray) -> NDArray[np.bool_]:
    """[B, T] True on the first `lengths[i]` places of row i; T is the largest length."""
    return np.arange(lengths.max(initial=0))[None, :] < lengths[:, None]
