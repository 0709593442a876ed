"""Small valid tables for tests. Every function returns a table that passes its schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from rollbook.components.advantages.base import AdvantageInputs
from rollbook.core.ids import group_id_of, prompt_id_of, rollout_id_of, seed_of
from rollbook.core.ragged import Ragged
from rollbook.tables.artifacts import schema_of


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
                    "greedy": False,
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


def advantage_inputs(
    rewards: Sequence[float],
    groups: Sequence[int] | None = None,
    loss_mask: Sequence[Sequence[int]] | None = None,
    components: Sequence[Sequence[float]] | None = None,
    weights: Sequence[float] | None = None,
    steps: Sequence[Sequence[tuple[int, float]]] | None = None,
    values: Sequence[Sequence[float]] | None = None,
    penalties: Sequence[Sequence[float]] | None = None,
    greedy_rewards: Sequence[float] | None = None,
) -> AdvantageInputs:
    """What an estimator sees of these rollouts: one group, one reward function and one token each unless told.

    Args:
        rewards: of each rollout; NaN = missing.
        groups: labels.
        loss_mask: 0 or 1 per completion token.
        components: of each rollout, one reward per function.
        weights: of the functions.
        steps: of each rollout, the token that ends a step and the step's reward.
        values: per completion token.
        penalties: per completion token; not yet in `rewards`.
        greedy_rewards: of each rollout's prompt.
    """
    totals = np.array(rewards, dtype=np.float64)
    parts = totals[:, None] if components is None else np.array(components, dtype=np.float64)
    mask = Ragged.of([[1]] * len(totals) if loss_mask is None else loss_mask, dtype=bool)
    taken_off = None if penalties is None else Ragged.of(penalties)
    return AdvantageInputs(
        rewards=totals if taken_off is None else totals - taken_off.sums(),
        groups=np.zeros(len(totals), dtype=np.int64) if groups is None else np.array(groups),
        components=parts,
        weights=np.ones(parts.shape[1]) if weights is None else np.array(weights),
        loss_mask=mask,
        token_penalties=taken_off,
        greedy_rewards=None if greedy_rewards is None else np.array(greedy_rewards),
        step_ends=None
        if steps is None
        else Ragged.of([[end for end, _ in row] for row in steps], np.int64),
        step_rewards=None
        if steps is None
        else Ragged.of([[reward for _, reward in row] for row in steps]),
        values=None if values is None else Ragged.of(values),
    )


def with_greedy(
    prompts: Sequence[Mapping[str, Any]], texts: Sequence[Sequence[str]], greedy: Sequence[str]
) -> list[dict[str, Any]]:
    """Rows as of `rollout_rows`, and behind each group the greedy answer to its prompt."""
    rows = rollout_rows(
        prompts, [[*group, last] for group, last in zip(texts, greedy, strict=True)]
    )
    sizes = {prompt["group_id"]: len(group) for prompt, group in zip(prompts, texts, strict=True)}
    return [{**row, "greedy": row["sample_index"] == sizes[row["group_id"]]} for row in rows]


def history_row(prompt_id: str, informative: bool = True, **changes: Any) -> dict[str, Any]:
    """A prompt that the chain has asked once, in i0001, four answers of it scored."""
    mean = 0.5 if informative else 1.0
    return {
        "prompt_id": prompt_id,
        "iteration": "i0001",
        "times_asked": 1,
        "times_informative": int(informative),
        "scored_rollouts": 4,
        "mean_reward": mean,
        "last_iteration": "i0001",
        "last_informative": informative,
        "last_mean_reward": mean,
        **changes,
    }
