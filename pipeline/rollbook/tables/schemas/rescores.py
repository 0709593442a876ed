"""rescores: one row per rollout: what other rewards say about it, beside what was said when it was trained on.

`reward`, `error`, `step_rewards`, `reward_<label>`, what rewards log, `advantage` and `token_advantages` are those of
the re-score, named as in the tables they come from; `old_*` are those of the iteration.
"""

import pandera.pyarrow as pandera
import pyarrow as pa
import pyarrow.compute as pc

from rollbook.tables.schemas.advantages import ROWS as ADVANTAGE_ROWS
from rollbook.tables.schemas.advantages import SCHEMA as ADVANTAGES
from rollbook.tables.schemas.base import Column, TableSchema
from rollbook.tables.schemas.scores import SCHEMA as SCORES

SIGNALS = ("none", "kept", "gained", "lost")
"""What became of a group's signal: rewards differ in neither, both, only the new, only the old."""

SCHEMA = TableSchema(
    kind="rescores",
    version=1,
    key="rollout_id",
    columns={
        **SCORES.columns,
        "greedy": Column(pa.bool_()),
        "old_reward": Column(pa.float64(), nullable=True),
        "old_advantage": Column(pa.float64()),
        "advantage": ADVANTAGES.columns["advantage"],
        "token_advantages": ADVANTAGES.columns["token_advantages"],
        "sign_flipped": Column(pa.bool_()),  # one advantage is above 0 and the other below
        # Place by reward among the sampled rollouts of the group: 1 is the best, equal rewards share the better place.
        "old_group_rank": Column(pa.int32(), nullable=True),
        "group_rank": Column(pa.int32(), nullable=True),
        "rank_moved": Column(pa.int32(), nullable=True),  # places towards the best
        "group_signal": Column(pa.string(), checks=(pandera.Check.isin(SIGNALS),)),
        # Log of reference / policy that sampled, over the rollout, nats; null without stored log-probs.
        "reference_log_weight": Column(pa.float64(), nullable=True),
    },
    rows={
        **SCORES.rows,
        **ADVANTAGE_ROWS,
        "old advantage is finite": lambda table: pc.is_finite(table["old_advantage"]),
        "a flipped sign is one of two advantages": lambda table: pc.equal(
            table["sign_flipped"],
            pc.less(pc.multiply(pc.sign(table["old_advantage"]), pc.sign(table["advantage"])), 0),
        ),
    },
    open=True,
    patterns=SCORES.patterns,
)
