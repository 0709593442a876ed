"""prompts: one row per prompt that an iteration asks, rendered and tokenized."""

import pyarrow as pa
import pyarrow.compute as pc

from rollbook.tables.schemas.base import MESSAGES, TOKEN_IDS, Column, TableSchema, every_item

SCHEMA = TableSchema(
    kind="prompts",
    version=1,
    key="prompt_id",
    columns={
        "iteration": Column(pa.string()),
        "group_id": Column(pa.string(), unique=True),
        "prompt_id": Column(pa.string(), unique=True),
        "messages": Column(MESSAGES),
        "prompt": Column(pa.string()),
        "prompt_token_ids": Column(TOKEN_IDS),
        "reference_answer": Column(pa.string(), nullable=True),
    },
    rows={
        "a prompt has tokens": lambda table: pc.greater(
            pc.list_value_length(table["prompt_token_ids"]), 0
        ),
        "token ids are not negative": every_item(
            "prompt_token_ids", lambda ids: pc.greater_equal(ids, 0)
        ),
    },
    open=True,
)
