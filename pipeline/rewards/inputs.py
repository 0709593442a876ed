"""From tables to what rewards see of a rollout."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import ArtifactError
from pipeline.rewards.base import RewardInput

PROMPT_COLUMNS = ("messages", "prompt", "reference_answer")
NOT_OF_THE_SOURCE = frozenset(
    {"iteration", "group_id", "prompt_id", "prompt_token_ids", *PROMPT_COLUMNS}
)


def inputs_of(prompts: pa.Table, rollouts: pa.Table) -> list[RewardInput]:
    """What rewards see of each rollout, in the order of `rollouts`.

    Args:
        prompts: a prompts table, or any with `prompt_id`, `messages`, `prompt`, `reference_answer`; further columns are
            the source's own. Joined by `group_id` where it has one (evaluation sets may share prompts), else by
            `prompt_id`.
        rollouts: a rollouts table, or any with its columns.

    Raises:
        ArtifactError: if the prompt of a rollout is missing.
    """
    key = "group_id" if "group_id" in prompts.column_names else "prompt_id"
    places = pc.index_in(rollouts[key], value_set=prompts[key].combine_chunks())
    if places.null_count:
        missing = rollouts["rollout_id"].filter(pc.is_null(places))
        raise ArtifactError(
            f"prompts of {len(missing)} of {rollouts.num_rows} rollouts are missing, such as that of {missing[0]}",
            "prompts and rollouts are of different runs; run `dvc repro`",
        )
    asked = prompts.select(PROMPT_COLUMNS).to_pylist()
    own = [name for name in prompts.column_names if name not in NOT_OF_THE_SOURCE]
    columns = prompts.select(own).to_pylist() if own else [{} for _ in asked]
    names = ("rollout_id", "group_id", "prompt_id", "iteration", "completion", "text", "greedy")
    rows = zip(
        *(rollouts[name].to_pylist() for name in (*names, "finish_reason")),
        _token_lists(rollouts["completion_token_ids"]),
        places.to_pylist(),
        strict=True,
    )
    return [
        RewardInput(
            **dict(zip(names, values[:-3], strict=True)),
            finish_reason=values[-3],
            completion_token_ids=values[-2],
            columns=columns[values[-1]],
            **asked[values[-1]],
        )
        for values in rows
    ]


def _token_lists(column: pa.ChunkedArray) -> list[Sequence[int]]:
    """Token ids of each row as compact arrays: Python lists would take ten times the memory."""
    lists = column.combine_chunks()
    ends = np.cumsum(pc.list_value_length(lists).to_numpy(zero_copy_only=False)).tolist()
    flat = pc.list_flatten(lists).to_numpy().astype(np.int32, copy=False)
    return [
        array("i", flat[start:end].tobytes()) for start, end in zip([0, *ends], ends, strict=False)
    ]
