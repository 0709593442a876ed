"""data/train and data/evaluation: one row per prompt, before it is rendered for a policy."""

import pyarrow as pa
import pyarrow.compute as pc

from rollbook.tables.schemas.base import MESSAGES, Column, TableSchema, every_item

PROMPT_ID = "[0-9a-f]{16}"

SCHEMA = TableSchema(
    kind="data",
    version=1,
    key="prompt_id",
    columns={
        "prompt_id": Column(pa.string()),
        "messages": Column(MESSAGES),
        "reference_answer": Column(pa.string(), nullable=True),
        "source": Column(pa.string()),
        "set": Column(pa.string()),
    },
    rows={
        "prompt_id is 16 hex digits": lambda table: pc.match_substring_regex(
            table["prompt_id"], f"^{PROMPT_ID}$"
        ),
        "messages is not empty": lambda table: pc.greater(
            pc.list_value_length(table["messages"]), 0
        ),
        "every message has a role and content": every_item(
            "messages",
            lambda items: pc.and_(
                pc.is_valid(pc.struct_field(items, "role")),
                pc.is_valid(pc.struct_field(items, "content")),
            ),
        ),
    },
    open=True,
)
