"""winning_answers: empty, repeated or looping answers that are rewarded above their group.

An answer that says nothing, that is the same to prompts with different reference answers, or that repeats itself,
cannot be right often. Where it is paid for, the policy will give no other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from pydantic import PositiveInt

from rollbook.core.component import Share
from rollbook.rl.estimation import Flags
from rollbook.rl.evaluation import Estimate
from rollbook.views.doctor.chain import ChainReading
from rollbook.views.doctor.checks.base import Check, change_of, reward_change
from rollbook.views.doctor.finding import Change, Finding
from rollbook.views.doctor.iteration import Reading
from rollbook.views.doctor.rollouts import Rollouts
from rollbook.views.doctor.statistics import group_means, mean_of

SHOWN = 40


@dataclass(frozen=True)
class _Kind:
    """Suspicious answers of an iteration: which rows, how they are called, and their reward above their group."""

    reading: Reading
    rollouts: Rollouts
    rows: Flags
    name: str
    lead: Estimate

    @property
    def share(self) -> float:
        return float(self.rows.mean())


class WinningAnswers(Check):
    """Answers that win without answering.

    Attributes:
        empty: share of answers without any text; the shipped params.yaml has 0.002 at most.
        common: share of one text among all answers; the shipped params.yaml has 0.04 at most.
        references: different reference answers that the one text must have been given to; a task of yes and no, or of
            four choices, has fewer.
        looping: share of answers of which more than half of the n-grams are repetition; tables and code have some.
        won: share of the answers from which on they have won already, though little is left in their groups to be
            above: most of them.
    """

    empty: Share = 0.05
    common: Share = 0.3
    references: PositiveInt = 6
    looping: Share = 0.2
    won: Share = 0.5

    def __call__(self, run: ChainReading) -> Iterator[Finding]:
        by_name: dict[str, list[_Kind]] = {}
        for reading, rollouts in run.scored:
            for kind in self._kinds(reading, rollouts):
                if kind.lead.low > 0 or self._has_won(kind, run):
                    by_name.setdefault(kind.name, []).append(kind)
        for name, found in by_name.items():
            last = found[-1]
            yield self.finding(
                "serious",
                [each.reading for each in found],
                f"{last.share:.0%} of answers are {name}, and are rewarded for it",
                [_evidence(each) for each in found[-4:]],
                "a reward pays for them: the policy has found a way around the task (`rollbook probe` finds others)",
                _change(last),
            )

    def _kinds(self, reading: Reading, rollouts: Rollouts) -> Iterator[_Kind]:
        rows = rollouts.empty
        if rows.mean() > self.empty:
            yield _kind(reading, rollouts, rows, "empty")
        answer = int(np.bincount(rollouts.answers).argmax()) if len(rollouts) else 0
        rows = (rollouts.answers == answer) & ~rollouts.empty
        if rows.any() and rows.mean() > self.common and self._is_no_answer(rollouts, rows):
            text = rollouts.text(answer)
            shown = text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
            yield _kind(reading, rollouts, rows, f"the same text, {shown!a}")
        rows = rollouts.repetition > 0.5
        if rows.any() and rows.mean() > self.looping:
            yield _kind(reading, rollouts, rows, "mostly repetition of themselves")

    def _is_no_answer(self, rollouts: Rollouts, rows: Flags) -> bool:
        """Whether one text was given to many different reference answers; prompts count where there are none.

        Where the prompts are not on disk nobody knows: it may be a task of yes and no.
        """
        if (known := rollouts.references) is None:
            return False
        groups = np.unique(rollouts.groups[rows])
        answers = {known[group] for group in groups} - {None}
        return (len(answers) or len(groups)) >= self.references

    def _has_won(self, kind: _Kind, run: ChainReading) -> bool:
        """Whether they are most of the answers, and paid more than an average answer of the first iteration."""
        rewards = kind.rollouts.rewards[kind.rows]
        if kind.share < self.won or np.isnan(rewards).all():
            return False
        return bool(np.nanmean(rewards) > run.scored[0][1].mean_reward)


def _kind(reading: Reading, rollouts: Rollouts, rows: Flags, name: str) -> _Kind:
    lead = mean_of(group_means(rollouts.lead, rollouts.groups, rows))
    return _Kind(reading, rollouts, rows, name, lead)


def _evidence(each: _Kind) -> str:
    place = int(
        np.where(each.rows, np.nan_to_num(each.rollouts.rewards, nan=-np.inf), -np.inf).argmax()
    )
    return (
        f"{each.reading.name}: {each.share:.0%} of {len(each.rows)} answers, {each.lead.text('+.3g')} above the "
        f"mean of their groups; such as {each.rollouts.ids[place].as_py()}"
    )


def _change(kind: _Kind) -> Change:
    """No weight for the function that pays most for them; another where there is only one, or none that pays."""
    reading, place = kind.reading, "score_rollouts.rewards"
    paid = {
        number: reward.weight * float(np.nanmean(values[kind.rows]) - np.nanmean(values))
        for number, reward in enumerate(reading.recipe.score_rollouts.rewards)
        if reward.weight
        and (values := kind.rollouts.component(reward)) is not None
        and not np.isnan(values[kind.rows]).all()
    }
    if len(paid) < 2 or max(paid.values()) <= 0:
        return change_of(reading, place, "one that gives nothing for such answers")
    most = max(paid, key=lambda number: paid[number])
    return reward_change(reading, most, "weight", 0.0)
