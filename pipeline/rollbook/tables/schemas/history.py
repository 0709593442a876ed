"""history: one row per prompt asked so far in a chain of iterations, this one included, and what came of it.

Carried from iteration to iteration: `compute_advantages` reads the predecessor's and writes the next, `prepare_prompts`
reads it. It is a table and no look at all earlier iterations, because DVC would take a dependency on their folder for
a cycle.
"""

import pandera.pyarrow as pandera
import pyarrow as pa
import pyarrow.compute as pc

from rollbook.tables.schemas.base import Column, TableSchema

AT_LEAST_ONE = (pandera.Check.ge(1),)
NOT_NEGATIVE = (pandera.Check.ge(0),)


def _finite_or_null(name: str, table: pa.Table) -> pa.Array:
    return pc.or_kleene(pc.is_finite(table[name]), pc.is_null(table[name]))


SCHEMA = TableSchema(
    kind="history",
    version=1,
    key="prompt_id",
    columns={
        "prompt_id": Column(pa.string(), unique=True),
        "iteration": Column(pa.string()),  # whose table this is
        "times_asked": Column(pa.int32(), checks=AT_LEAST_ONE),  # iterations
        "times_informative": Column(pa.int32(), checks=NOT_NEGATIVE),  # whose rewards differed
        "scored_rollouts": Column(pa.int32(), checks=NOT_NEGATIVE),  # sampled ones with a reward
        "mean_reward": Column(pa.float64(), nullable=True),  # over all of these
        "last_iteration": Column(pa.string()),  # that asked it
        "last_informative": Column(pa.bool_()),
        "last_mean_reward": Column(pa.float64(), nullable=True),
    },
    rows={
        "mean rewards are finite or null, never NaN": lambda table: pc.and_(
            _finite_or_null("mean_reward", table), _finite_or_null("last_mean_reward", table)
        ),
        "no prompt was informative more often than asked": lambda table: pc.less_equal(
            table["times_informative"], table["times_asked"]
        ),
    },
)
