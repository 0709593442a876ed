"""advantages: one row per rollout: the baseline-subtracted reward and what it was computed from."""

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.schemas.base import TOKEN_FLOATS, Column, TableSchema, every_item, finite
from pipeline.schemas.rollouts import IDS

SCHEMA = TableSchema(
    kind="advantages",
    version=1,
    key="rollout_id",
    columns={
        **IDS,
        "advantage": Column(pa.float64()),
        "token_advantages": Column(TOKEN_FLOATS, nullable=True),
        "group_mean": Column(pa.float64(), nullable=True),
        "group_std": Column(pa.float64(), nullable=True),
        "informative": Column(pa.bool_()),
        "kept": Column(pa.bool_()),
    },
    rows={
        "advantage is finite": lambda table: pc.is_finite(table["advantage"]),
        "token advantages are finite": every_item("token_advantages", finite),
    },
)
