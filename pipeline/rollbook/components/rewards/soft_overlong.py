"""soft_overlong: a penalty from 0 down to −1 for completions that come near the length limit, in tokens.

    0                          up to max − cache
    (max − cache − n) / cache  behind it, up to max
    −1                         beyond max

DAPO, arXiv 2503.14476 eq. 13 (max 20480, cache 4096), added to the reward of the answer; GRPO scores the answer alone,
so that a cut-off one counts as wrong. TRL `get_soft_overlong_punishment`; verl's `overlong_buffer` is the same, as it
never sees a completion beyond max.
"""

from __future__ import annotations

from pydantic import NonNegativeInt, PositiveInt, model_validator

from rollbook.components.rewards.base import Reward, RewardInput


class SoftOverlong(Reward):
    """Counts tokens, the stop token included.

    Attributes:
        max_completion_tokens: length at which the penalty is −1; the recipe's
            `generate_rollouts.max_completion_tokens`, or less.
        cache_tokens: tokens before it over which the penalty grows; 0 makes it a step behind it.
    """

    max_completion_tokens: PositiveInt
    cache_tokens: NonNegativeInt

    @model_validator(mode="after")
    def _cache_fits(self) -> SoftOverlong:
        if self.cache_tokens > self.max_completion_tokens:
            raise ValueError(
                f"cache_tokens {self.cache_tokens} must not be above max_completion_tokens {self.max_completion_tokens}"
            )
        return self

    def __call__(self, row: RewardInput) -> float:
        tokens = len(row.completion_token_ids)
        over = tokens - (self.max_completion_tokens - self.cache_tokens)
        if over <= 0:
            return 0.0
        return -over / self.cache_tokens if tokens <= self.max_completion_tokens else -1.0
