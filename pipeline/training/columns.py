"""Columns of rollout-level tables."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.tokens import Ragged


def lists_where(lists: Ragged, valid: NDArray[np.bool_]) -> pa.Array:
    """A list column with the lists where `valid`, null elsewhere."""
    shown = lists.rows(np.flatnonzero(valid))
    lengths = np.where(valid, lists.lengths, 0)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(
        pa.array(offsets), pa.array(shown.values), mask=pa.array(~valid)
    )
