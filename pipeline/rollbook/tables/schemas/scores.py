"""scores: one row per rollout: the weighted reward, each function's own, and what the functions logged."""

import pyarrow as pa
import pyarrow.compute as pc

from rollbook.tables.schemas.base import STEP_REWARDS, Column, TableSchema
from rollbook.tables.schemas.rollouts import IDS

REWARD_PATTERN = r"reward_.+"
REWARDS = {
    "reward": Column(pa.float64(), nullable=True),
    "error": Column(pa.string(), nullable=True),
    "step_rewards": Column(STEP_REWARDS, nullable=True),
}
REWARD_ROWS = {
    "reward is finite or null, never NaN": lambda table: pc.or_kleene(
        pc.is_finite(table["reward"]), pc.is_null(table["reward"])
    ),
}

SCHEMA = TableSchema(
    kind="scores",
    version=1,
    key="rollout_id",
    columns={**IDS, **REWARDS},
    rows=REWARD_ROWS,
    open=True,
    patterns={REWARD_PATTERN: Column(pa.float64(), nullable=True)},
)
