"""evaluations: one row per evaluation completion, generated and scored by the run's fixed evaluation settings."""

import pyarrow as pa

from rollbook.tables.schemas.base import Column, TableSchema
from rollbook.tables.schemas.rollouts import COMPLETION, COMPLETION_ROWS, IDS
from rollbook.tables.schemas.scores import REWARD_PATTERN, REWARD_ROWS, REWARDS

SCHEMA = TableSchema(
    kind="evaluations",
    version=1,
    key="rollout_id",
    columns={
        **IDS,
        "set": Column(pa.string()),
        "prompt": Column(pa.string()),
        "reference_answer": Column(pa.string(), nullable=True),
        **COMPLETION,
        **REWARDS,
    },
    rows={**COMPLETION_ROWS, **REWARD_ROWS},
    open=True,
    patterns={REWARD_PATTERN: Column(pa.float64(), nullable=True)},
)
