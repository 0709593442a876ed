"""What was measured, as table and metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rollbook.rl.training.mismatch import mismatch_metrics, reported
from rollbook.tables.artifacts import schema_of
from rollbook.tables.schemas.rollouts import IDS

if TYPE_CHECKING:
    from rollbook.core.ragged import Ragged
    from rollbook.rl.training.measure import Measured
    from rollbook.rl.training.rows import Rows


def logprobs_table(
    rollouts: pa.Table,
    old: Measured | None,
    reference: Measured | None,
    values: Ragged | None = None,
) -> pa.Table:
    """One row per rollout. Columns that were not measured are null.

    Args:
        rollouts: the iteration's rollouts table.
        old: under the policy before the update.
        reference: under the reference policy.
        values: what the critic before the update says of each completion token.
    """
    columns: dict[str, Any] = {name: rollouts[name] for name in IDS}
    nothing = pa.nulls(rollouts.num_rows)
    for name, lists in {
        "old_logprobs": None if old is None else old.logprobs,
        "ref_logprobs": None if reference is None else reference.logprobs,
        "values": values,
        "entropies": None if old is None else old.entropies,
    }.items():
        columns[name] = nothing if lists is None else lists.to_column()
    return schema_of("logprobs").build(columns)


def sampling_metrics(rows: Rows, old: Measured | None) -> dict[str, float]:
    """How far the trainer is from the engine, and the entropy, over the trained-on tokens of sampled rollouts."""
    if old is None:
        return {}
    index = np.flatnonzero(~rows.greedy)
    mask = rows.loss_mask.rows(index)
    entropies = old.entropies.rows(index).values[mask.values]
    sampling = rows.sampling_logprobs.rows(index)
    return {
        **reported(mismatch_metrics(old.logprobs.rows(index), sampling, mask)),
        "old_entropy": float(entropies.mean(dtype=np.float64)) if len(entropies) else float("nan"),
    }
