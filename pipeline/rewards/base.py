"""The interface of a reward: one completion in, a number out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pipeline.component import Component


@dataclass(frozen=True)
class RewardInput:
    """What a reward sees of one rollout.

    Attributes:
        rollout_id, group_id, prompt_id, iteration: the row's ids.
        messages: the prompt as chat messages.
        prompt: the rendered text the policy continued.
        completion: raw text, special tokens kept.
        text: clean text, special tokens removed.
        completion_token_ids: as sampled; the truth that both texts are derived from.
        finish_reason: `stop`, `length` or `error`.
        reference_answer: the gold answer, if the data has one.
        columns: the source's own columns of this prompt.
        greedy: made without sampling; scored apart from the sampled rollouts of its group.
    """

    rollout_id: str
    group_id: str
    prompt_id: str
    iteration: str
    messages: Sequence[Mapping[str, str]]
    prompt: str
    completion: str
    text: str
    completion_token_ids: Sequence[int]
    finish_reason: str
    reference_answer: str | None
    columns: Mapping[str, Any] = field(default_factory=dict)
    greedy: bool = False


@dataclass(frozen=True)
class RewardResult:
    """A reward with more to say than its number.

    Attributes:
        value: the reward, or None where it does not apply.
        log: values for columns of the scores table, named as they should be called there.
        steps: process rewards as (end token index, value) pairs.
        error: why the row could not be scored; set by the scoring loop when the reward raised.
    """

    value: float | None
    log: Mapping[str, Any] = field(default_factory=dict)
    steps: Sequence[tuple[int, float]] | None = None
    error: str | None = None


class Reward(Component):
    """One completion in, a number out; None = does not apply; raise = a fault of the scorer, never 0.0.

    Attributes:
        weight: factor in the sum of rewards; may be 0 (only watch) or negative.
        label: column name behind `reward_`; default: the component's name.
    """

    kind: ClassVar[str] = "rewards"
    weight: float = 1.0
    label: str | None = None

    @property
    def column(self) -> str:
        """Name of this reward's column in the scores table."""
        return f"reward_{self.label or self.name}"

    def __call__(self, row: RewardInput) -> float | RewardResult | None:
        raise NotImplementedError

    def score(self, group: Sequence[RewardInput]) -> list[float | RewardResult | None]:
        """Scores the rollouts of one prompt together. Override when siblings matter."""
        return [self(row) for row in group]
