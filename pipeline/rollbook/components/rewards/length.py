"""length: a penalty for completions that miss a target length, in tokens.

    exact    −coef · |target − n|
    max      −coef · max(0, n − target)

The length term of LCPO-Exact, arXiv 2503.04697 eq. 1 (coef 0.0003), added to the reward of the answer; GRPO has none.
`max` charges only what is too long; LCPO-Max multiplies with the answer instead of adding to it. Put the target into
the prompt as well, or the policy can only learn its mean.
"""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from rollbook.components.rewards.base import Reward, RewardInput
from rollbook.core.errors import RewardError


class Length(Reward):
    """Counts tokens, the stop token included.

    Attributes:
        target_tokens: the target.
        target_column: column of the data with a target of its own for each prompt; where it is null, `target_tokens`.
        mode: whether too short is penalised too.
        coef: penalty per token.
    """

    target_tokens: PositiveInt
    target_column: str | None = None
    mode: Literal["exact", "max"] = "exact"
    coef: PositiveFloat = 0.0003

    def __call__(self, row: RewardInput) -> float:
        over = len(row.completion_token_ids) - self._target(row)
        return -self.coef * (abs(over) if self.mode == "exact" else max(0, over))

    def _target(self, row: RewardInput) -> int:
        if self.target_column is None:
            return self.target_tokens
        if self.target_column not in row.columns:
            raise RewardError(f"the data has no column {self.target_column!r}")
        target = row.columns[self.target_column]
        if target is None:
            return self.target_tokens
        if isinstance(target, bool) or not isinstance(target, int) or target < 1:
            raise RewardError(f"{self.target_column} must be a number of tokens, is {target!r}")
        return target
