"""advantages: one row per rollout: the baseline-subtracted reward and what it was computed from."""

import pyarrow as pa
import pyarrow.compute as pc

from rollbook.tables.schemas.base import (
    TOKEN_FLOATS,
    Column,
    RowCheck,
    TableSchema,
    every_item,
    finite,
    lists_equally_long,
)
from rollbook.tables.schemas.rollouts import IDS

ROWS: dict[str, RowCheck] = {
    "advantage is finite": lambda table: pc.is_finite(table["advantage"]),
    "token advantages are finite": every_item("token_advantages", finite),
}
"""What holds of advantages in every table that has them."""

SCHEMA = TableSchema(
    kind="advantages",
    version=2,
    key="rollout_id",
    columns={
        **IDS,
        "advantage": Column(pa.float64()),
        "token_advantages": Column(TOKEN_FLOATS, nullable=True),
        # What a critic should have said; null without one, and for rollouts without a reward.
        "token_returns": Column(TOKEN_FLOATS, nullable=True),
        "group_mean": Column(pa.float64(), nullable=True),
        "group_std": Column(pa.float64(), nullable=True),
        "informative": Column(pa.bool_()),
        "kept": Column(pa.bool_()),
    },
    rows={
        **ROWS,
        "token returns are finite": every_item("token_returns", finite),
        "lists are equally long": lists_equally_long("token_advantages", "token_returns"),
    },
)
