"""logprobs: per token, under frozen models: what the trainer's old policy, the reference and a critic say.

Empty (no rows) when the recipe needs none of them.
"""

from rollbook.tables.schemas.base import (
    TOKEN_FLOATS,
    Column,
    TableSchema,
    every_item,
    finite,
    lists_equally_long,
    logprob,
)
from rollbook.tables.schemas.rollouts import IDS

SCHEMA = TableSchema(
    kind="logprobs",
    version=1,
    key="rollout_id",
    columns={
        **IDS,
        "old_logprobs": Column(TOKEN_FLOATS, nullable=True),
        "ref_logprobs": Column(TOKEN_FLOATS, nullable=True),
        "values": Column(TOKEN_FLOATS, nullable=True),
        "entropies": Column(TOKEN_FLOATS, nullable=True),
    },
    rows={
        "lists are equally long": lists_equally_long(
            "old_logprobs", "ref_logprobs", "values", "entropies"
        ),
        "old log-probs are finite and not above 0": every_item("old_logprobs", logprob),
        "reference log-probs are finite and not above 0": every_item("ref_logprobs", logprob),
        "values are finite": every_item("values", finite),
        "entropies are finite": every_item("entropies", finite),
    },
)
