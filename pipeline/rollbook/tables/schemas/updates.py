"""updates: one row per rollout: what the update did with it."""

import pandera.pyarrow as pandera
import pyarrow as pa

from rollbook.tables.schemas.base import TOKEN_FLOATS, Column, TableSchema, every_item, finite
from rollbook.tables.schemas.rollouts import IDS

SHARE = (pandera.Check.in_range(0.0, 1.0),)

SCHEMA = TableSchema(
    kind="updates",
    version=2,
    key="rollout_id",
    columns={
        **IDS,
        "trained": Column(pa.bool_()),
        "reason": Column(pa.string(), nullable=True),  # why a rollout was not trained on
        "policy_logprobs": Column(
            TOKEN_FLOATS, nullable=True
        ),  # when the rollout was last seen, before that step
        "ratio_mean": Column(pa.float64(), nullable=True),
        "ratio_min": Column(pa.float64(), nullable=True),
        "ratio_max": Column(pa.float64(), nullable=True),
        "clipped_fraction": Column(pa.float64(), nullable=True, checks=SHARE),
        "kl": Column(pa.float64(), nullable=True),  # token mean of the KL term, nats
        "rollout_weight": Column(
            pa.float64(), nullable=True
        ),  # token mean of the rollout correction
        "loss_share": Column(
            pa.float64(), nullable=True
        ),  # the rollout's part of the sum of |per-token loss|
    },
    rows={"policy log-probs are finite": every_item("policy_logprobs", finite)},
)
