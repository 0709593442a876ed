"""Runs recorded rewards that look at token ids alone."""

from __future__ import annotations

from typing import Any

from rollbook.components.rewards.base import Reward, RewardInput
from rollbook.components.rewards.repetition_penalty import RepetitionPenalty
from rollbook.components.rewards.soft_overlong import SoftOverlong
from tests.unit.components.rewards.rows import row
from tests.vectors.cases import Unsupported, differs

CATEGORIES = ("rewards",)


def run_case(category: str, case: dict[str, Any]) -> str | None:
    """None if the reward gives the recorded numbers, else what differs.

    Raises:
        Unsupported: if no reward is meant to give them.
    """
    if category not in CATEGORIES:
        raise Unsupported(f"category {category}")
    given, tol = case["inputs"], case["tol"]
    reward = _reward_of(case)
    ids = given.get("completion_ids") or [[1] * length for length in given["lengths"]]
    return differs(
        "rewards",
        [reward(_completion(each)) for each in ids],
        case["expected"]["rewards"],
        tol["rtol"],
        tol["atol"],
    )


def _reward_of(case: dict[str, Any]) -> Reward:
    config = case["config"]
    if case["impl"] == "trl.soft_overlong_punishment":
        return SoftOverlong(
            max_completion_tokens=config["max_completion_len"],
            cache_tokens=config["soft_punish_cache"],
        )
    if case["impl"] == "trl.repetition_penalty":
        return RepetitionPenalty(**config)
    raise Unsupported(f"reward {case['impl']}")


def _completion(ids: list[int]) -> RewardInput:
    return row("", completion_token_ids=ids)
