"""One iteration's rollouts as people read them: texts, rewards and advantages, without the token lists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl
import polars.selectors as cs

from rollbook.project.run.run import Run

JOINED = ("prompts", "scores", "advantages")
ANSWER_LENGTH = 200
QUESTION_LENGTH = 500
"""Characters of a text in the table of groups."""


def is_on_disk(run: Run, key: str) -> bool:
    """Whether all tables of the iteration's rollouts are there; old ones may have been pruned."""
    return all(run.has(kind, key) for kind in ("rollouts", *JOINED))


def readable(run: Run, key: str) -> pl.DataFrame:
    """One row per rollout with its prompt, scores and advantage, groups together.

    Lists are left out but for `messages`; `length_tokens` and `prompt_length_tokens` say how long they were.
    """
    frame = run.scan("rollouts", join=JOINED, iterations=[key]).with_columns(
        length_tokens=pl.col("completion_token_ids").list.len(),
        prompt_length_tokens=pl.col("prompt_token_ids").list.len(),
    )
    return frame.select("messages", ~cs.by_dtype(pl.List, pl.Struct)).collect()


def groups(rollouts: pl.DataFrame) -> pl.DataFrame:
    """One row per group as people compare its answers: question, rewards and answers side by side, long texts cut."""
    answers = pl.col("text").str.head(ANSWER_LENGTH).str.join(" ¦ ")
    return rollouts.group_by("group_id", maintain_order=True).agg(
        question=pl.col("messages")
        .first()
        .list.last()
        .struct.field("content")
        .str.head(QUESTION_LENGTH),
        reference_answer=pl.col("reference_answer").first().cast(pl.String),
        reward_mean=pl.col("reward").mean().round(4),
        reward_std=pl.col("reward").std(ddof=0).round(4),
        rewards=pl.col("reward").round(4).cast(pl.String).fill_null("none").str.join(" "),
        answers=answers,
    )


def question(row: Mapping[str, Any]) -> str:
    """What was asked last, without the template around it."""
    return str(row["messages"][-1]["content"])


def sample(rollouts: pl.DataFrame, count: int) -> list[dict[str, Any]]:
    """At most `count` sampled rollouts, evenly spaced from the lowest reward to the highest; always the same ones."""
    ordered = rollouts.filter(~pl.col("greedy")).sort("reward", "rollout_id", nulls_last=False)
    if not count or ordered.is_empty():
        return []
    last = ordered.height - 1
    wanted = min(count, ordered.height)
    places = [round(place * last / max(wanted - 1, 1)) for place in range(wanted)]
    return ordered[places].to_dicts()
