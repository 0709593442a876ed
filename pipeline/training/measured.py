"""What was measured, as table and metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.artifacts import schema_of
from pipeline.schemas.rollouts import IDS
from pipeline.training.columns import lists_where

if TYPE_CHECKING:
    from pipeline.training.measure import Measured
    from pipeline.training.rows import Rows


def logprobs_table(
    rollouts: pa.Table, old: Measured | None, reference: Measured | None
) -> pa.Table:
    """One row per rollout. Columns that were not measured are null.

    Args:
        rollouts: the iteration's rollouts table.
        old: under the policy before the update.
        reference: under the reference policy.
    """
    columns: dict[str, Any] = {name: rollouts[name] for name in IDS}
    nothing, everywhere = pa.nulls(rollouts.num_rows), np.ones(rollouts.num_rows, bool)
    for name, lists in {
        "old_logprobs": None if old is None else old.logprobs,
        "ref_logprobs": None if reference is None else reference.logprobs,
        "values": None,
        "entropies": None if old is None else old.entropies,
    }.items():
        columns[name] = nothing if lists is None else lists_where(lists, everywhere)
    return schema_of("logprobs").build(columns)


def sampling_metrics(rows: Rows, old: Measured | None) -> dict[str, float]:
    """How far the trainer's log-probs are from those the engine reported, and the entropy, over trained-on tokens."""
    if old is None:
        return {}
    mask = rows.loss_mask.values
    difference = np.abs(old.logprobs.values - rows.sampling_logprobs.values)[mask]
    entropies = old.entropies.values[mask]
    return {
        "sampling/sampling_logp_difference/mean": _mean(difference),
        "sampling/sampling_logp_difference/max": float(difference.max(initial=0)),
        "old_entropy": _mean(entropies),
    }


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean(dtype=np.float64)) if len(values) else float("nan")
