"""pairs: one row per preference pair: two answers to one prompt, and which is preferred.

Empty (no rows) when the recipe's estimator makes none. Rewards are as the estimator saw them, held to `reward_clip`.
"""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rollbook.tables.schemas.base import Column, TableSchema


def _ids_agree(table: pa.Table) -> Any:
    """Both rollouts are of the group, and the pair is named after them."""
    slash = pc.binary_join_element_wise(table["group_id"], "", "/")
    last = pc.replace_substring_regex(table["rejected_id"], r"^.*/", "")
    return pc.and_(
        pc.and_(_begins(table["chosen_id"], slash), _begins(table["rejected_id"], slash)),
        pc.equal(table["pair_id"], pc.binary_join_element_wise(table["chosen_id"], last, "-")),
    )


def _begins(rollout_ids: Any, groups: Any) -> Any:
    """Whether an id is one of a group, whose id is given with a slash behind it."""
    own = pc.replace_substring_regex(rollout_ids, r"[^/]*$", "")
    return pc.equal(own, groups)


SCHEMA = TableSchema(
    kind="pairs",
    version=1,
    key="pair_id",
    columns={
        "pair_id": Column(pa.string(), unique=True),
        "group_id": Column(pa.string()),
        "prompt_id": Column(pa.string()),
        "iteration": Column(pa.string()),
        "chosen_id": Column(pa.string()),
        "rejected_id": Column(pa.string()),
        "chosen_reward": Column(pa.float64()),
        "rejected_reward": Column(pa.float64()),
    },
    rows={
        "a pair is of two rollouts of its group and named after them": _ids_agree,
        "the chosen answer has the higher reward": lambda table: pc.greater(
            table["chosen_reward"], table["rejected_reward"]
        ),
    },
)
