"""What an advantage estimator hands to a loss: the one word that both must agree on.

advantages  a number for every rollout, of either sign
choices     some rollouts to imitate, each with advantage 1; the others are left out of the update
pairs       two answers to one prompt, of which one is preferred; rollouts outside of pairs are left out
"""

from __future__ import annotations

from typing import Literal

Signal = Literal["advantages", "choices", "pairs"]

ESTIMATORS: dict[Signal, str] = {"advantages": "group", "choices": "best", "pairs": "pairs"}
LOSSES: dict[Signal, str] = {"advantages": "dapo", "choices": "sft", "pairs": "dpo"}
"""A built-in part to name to who has combined two that do not go together."""
