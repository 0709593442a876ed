"""The interface of a reward: one completion in, a number out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import PositiveFloat

from rollbook.core.component import Component


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
        time_limit: seconds a row may take (a group scored together: times its rows). A call that takes longer is
            killed with its worker process, in C code that hears no signal too, and is an error of its rows. Default:
            no limit.
        in_main_process: whether it must run where the program runs, such as a reward with threads or connections of its
            own. No time limit holds there.
    """

    kind: ClassVar[str] = "rewards"
    in_main_process: ClassVar[bool] = False
    weight: float = 1.0
    label: str | None = None
    time_limit: PositiveFloat | None = None

    @property
    def title(self) -> str:
        """What it is called: its label, else its component's name."""
        return self.label or self.name

    @property
    def column(self) -> str:
        """Name of this reward's column in the scores table."""
        return f"reward_{self.title}"

    def prepare(self) -> None:
        """Loads what the first call needs, such as a large import; called once per process, outside `time_limit`."""

    def look_ahead(self, rows: Sequence[RewardInput]) -> None:
        """Told the rows of the groups that are scored next; a reward that asks elsewhere can ask about all at once."""

    def run_info(self) -> dict[str, Any]:
        """What varies from run to run, such as cost and latency, since this object was built; goes into run_info."""
        return {}

    def __call__(self, row: RewardInput) -> float | RewardResult | None:
        raise NotImplementedError

    def score(self, group: Sequence[RewardInput]) -> list[float | RewardResult | None]:
        """Scores the rollouts of one prompt together. Override when siblings matter."""
        return [self(row) for row in group]


def parts_of(reward: Reward) -> Iterator[Reward]:
    """The reward, then those inside it."""
    yield reward
    for name in type(reward).model_fields:
        value = getattr(reward, name)
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(item, Reward):
                yield from parts_of(item)


def run_info_of(rewards: Sequence[Reward]) -> dict[str, Any]:
    """What varies from run to run of those rewards that count it, by label."""
    infos = {
        part.title: info
        for reward in rewards
        for part in parts_of(reward)
        if (info := part.run_info())
    }
    return {"rewards": infos} if infos else {}


def limit_of(reward: Reward) -> float | None:
    """Seconds per row: the reward's own limit, else that of a reward inside it."""
    return next((part.time_limit for part in parts_of(reward) if part.time_limit), None)
