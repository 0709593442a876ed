"""A reward's input with everything but the interesting part filled in."""

from __future__ import annotations

from array import array
from typing import Any

from rollbook.components.rewards.base import Reward, RewardInput
from rollbook.core.registry import build


def row(
    text: str, reference_answer: str | None = None, index: int = 0, **changes: Any
) -> RewardInput:
    """Completion `index` of one prompt."""
    values: dict[str, Any] = {
        "rollout_id": f"i0003/0123456789abcdef/{index:02d}",
        "group_id": "i0003/0123456789abcdef",
        "prompt_id": "0123456789abcdef",
        "iteration": "i0003",
        "messages": [{"role": "user", "content": "3+4="}],
        "prompt": "<user>3+4=<assistant>",
        "completion": f"{text}<eos>",
        "text": text,
        "completion_token_ids": array("i", [*range(5, 5 + len(text)), 2]),
        "finish_reason": "stop",
        "reference_answer": reference_answer,
        "columns": {},
    }
    return RewardInput(**{**values, **changes})


def reward(name: str, **options: Any) -> Reward:
    """A reward as params.yaml would build it."""
    built = build("rewards", {"name": name, **options})
    assert isinstance(built, Reward)
    return built
