"""Small valid tables for tests. Every function returns a table that passes its schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from pipeline.artifacts import schema_of
from pipeline.ids import group_id_of, prompt_id_of, rollout_id_of, seed_of


def prompt_rows(count: int, iteration: str = "i0001") -> list[dict[str, Any]]:
    """Sums `1+2=`, `2+3=`, … as rows of a prompts table."""
    rows = []
    for place in range(count):
        messages = [{"role": "user", "content": f"{place + 1}+{place + 2}="}]
        prompt_id = prompt_id_of(messages, str(2 * place + 3))
        rows.append(
            {
                "iteration": iteration,
                "group_id": group_id_of(iteration, prompt_id),
                "prompt_id": prompt_id,
                "messages": messages,
                "prompt": f"{place + 1}+{place + 2}=",
                "prompt_token_ids": [1, 10 + place, 3],
                "reference_answer": str(2 * place + 3),
            }
        )
    return rows


def rollout_rows(
    prompts: Sequence[Mapping[str, Any]],
    texts: Sequence[Sequence[str]],
    policy_digest: str = "digest",
) -> list[dict[str, Any]]:
    """One group per prompt; `texts[g][i]` is completion i of group g: a token per character and a stop token."""
    rows = []
    for prompt, group in zip(prompts, texts, strict=True):
        for index, text in enumerate(group):
            ids = [*(ord(character) % 50 + 4 for character in text), 2]
            rows.append(
                {
                    "rollout_id": rollout_id_of(prompt["group_id"], index),
                    "group_id": prompt["group_id"],
                    "prompt_id": prompt["prompt_id"],
                    "iteration": prompt["iteration"],
                    "sample_index": index,
                    "seed": seed_of(0, prompt["iteration"], prompt["prompt_id"], index),
                    "completion_token_ids": ids,
                    "loss_mask": [True] * len(ids),
                    "completion": f"{text}<eos>",
                    "text": text,
                    "sampling_logprobs": [-0.5] * len(ids),
                    "finish_reason": "stop",
                    "policy_digest": policy_digest,
                }
            )
    return rows


def table(kind: str, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Rows as a table of this kind, checked against its schema."""
    schema = schema_of(kind)
    names = (
        list(dict.fromkeys(name for row in rows for name in row))
        if rows
        else list(schema.empty().column_names)
    )
    built = schema.build({name: [row.get(name) for row in rows] for name in names})
    return schema.validate(built, f"test {kind}")
