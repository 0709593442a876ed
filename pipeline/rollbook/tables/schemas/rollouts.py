"""rollouts: one row per completion, as generated. Token ids are the truth; both texts are derived from them."""

import pandera.pyarrow as pandera
import pyarrow as pa
import pyarrow.compute as pc

from rollbook.tables.schemas.base import (
    TOKEN_FLAGS,
    TOKEN_FLOATS,
    TOKEN_IDS,
    Column,
    TableSchema,
    every_item,
    lists_equally_long,
    logprob,
)

FINISH_REASONS = ("stop", "length", "error")

IDS = {
    "rollout_id": Column(pa.string(), unique=True),
    "group_id": Column(pa.string()),
    "prompt_id": Column(pa.string()),
    "iteration": Column(pa.string()),
}
"""The columns every rollout-level table begins with."""

COMPLETION = {
    "sample_index": Column(pa.int32(), checks=(pandera.Check.ge(0),)),
    "greedy": Column(pa.bool_()),  # the likeliest token at every step; never trained on
    "seed": Column(pa.int64()),
    "completion_token_ids": Column(TOKEN_IDS),
    "loss_mask": Column(TOKEN_FLAGS),
    "completion": Column(pa.string()),
    "text": Column(pa.string()),
    "sampling_logprobs": Column(TOKEN_FLOATS),
    "finish_reason": Column(pa.string(), checks=(pandera.Check.isin(FINISH_REASONS),)),
    "policy_digest": Column(pa.string()),
}


def _ids_agree(table: pa.Table) -> pa.Array:
    index = pc.utf8_lpad(pc.cast(table["sample_index"], pa.string()), 2, "0")
    return pc.equal(table["rollout_id"], pc.binary_join_element_wise(table["group_id"], index, "/"))


COMPLETION_ROWS = {
    "ids, log-probs and mask are equally long": lists_equally_long(
        "completion_token_ids", "loss_mask", "sampling_logprobs"
    ),
    "log-probs are finite and not above 0": every_item("sampling_logprobs", logprob),
    "token ids are not negative": every_item(
        "completion_token_ids", lambda ids: pc.greater_equal(ids, 0)
    ),
    "a completion that did not fail has tokens": lambda table: pc.or_(
        pc.greater(pc.list_value_length(table["completion_token_ids"]), 0),
        pc.equal(table["finish_reason"], "error"),
    ),
    "rollout_id is group_id/sample_index": _ids_agree,
}


SCHEMA = TableSchema(
    kind="rollouts",
    version=2,
    key="rollout_id",
    columns={**IDS, **COMPLETION},
    rows=COMPLETION_ROWS,
)
