"""reward_values: rewards that cannot teach: constant, missing, failed, or stuck at a bound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from pydantic import PositiveInt

from rollbook.components.advantages.moments import std_of
from rollbook.components.rewards.base import Reward
from rollbook.core.component import Share
from rollbook.rl.scoring.totals import FloatArray
from rollbook.views.doctor.chain import ChainReading
from rollbook.views.doctor.checks.base import Check, change_of, reward_change
from rollbook.views.doctor.finding import Change, Finding
from rollbook.views.doctor.iteration import Reading
from rollbook.views.doctor.rollouts import Rollouts
from rollbook.views.doctor.statistics import without_nan

Scored = tuple[Reading, Rollouts]


class RewardValues(Check):
    """Rewards without information.

    Attributes:
        missing: share of rollouts that no reward applies to; they count in no mean and get no advantage, so a
            tenth of the generation is lost.
        failed: share of rollouts whose reward function failed; `score_rollouts.max_error_share` is how many are
            allowed, and defaults to 0; one in a hundred is a fault and no matter of chance.
        bound: share of rollouts that have exactly the highest, or exactly the lowest, reward of the run; one in twenty
            is what is left of a reward that has room.
        values: different rewards there must be for that to count; right and wrong are always at a bound.
        penalties: names of reward functions that only charge; where they are 0 for every answer there was nothing to
            charge for. Another function that is the same for every answer is noted.
    """

    missing: Share = 0.1
    failed: Share = 0.01
    bound: Share = 0.95
    values: PositiveInt = 3
    penalties: tuple[str, ...] = ("repetition_penalty", "soft_overlong")

    def __call__(self, run: ChainReading) -> Iterator[Finding]:
        scored = [each for each in run.scored if len(each[1])]
        constant = [each for each in scored if std_of(each[1].rewards, 0) == 0]
        yield from self._constant(constant)
        yield from self._missing(scored)
        yield from self._failed(scored)
        yield from self._bound(run, [each for each in scored if each not in constant])
        yield from self._silent_components([each for each in scored if each not in constant][-1:])

    def _constant(self, found: Sequence[Scored]) -> Iterator[Finding]:
        if not found:
            return
        reading, rollouts = found[-1]
        yield self.finding(
            "serious",
            [each for each, _ in found],
            f"every reward is {np.nanmean(rollouts.rewards):.3g}",
            [
                f"{each.name}: {len(rows)} rollouts, such as {rows.ids[0].as_py()}"
                for each, rows in found[-4:]
            ],
            "all prompts are solved, or none, or the reward does not look at the answer (`rollbook probe` tells)",
            _rewards(reading, "one that tells these answers apart"),
        )

    def _missing(self, scored: Sequence[Scored]) -> Iterator[Finding]:
        found = [each for each in scored if np.isnan(each[1].rewards).mean() > self.missing]
        if not found:
            return
        reading, rollouts = found[-1]
        share = float(np.isnan(rollouts.rewards).mean())
        yield self.finding(
            "serious" if share > 0.5 else "warning",
            [each for each, _ in found],
            f"{share:.0%} of rollouts have no reward",
            [
                f"{each.name}: {int(np.isnan(rows.rewards).sum())} of {len(rows)}, such as "
                f"{rows.ids[int(np.isnan(rows.rewards).argmax())].as_py()}"
                for each, rows in found[-4:]
            ],
            "no reward applies to them: reference answers are missing, or in a form that the reward does not read",
            _rewards(reading, "one that applies to these prompts"),
        )

    def _failed(self, scored: Sequence[Scored]) -> Iterator[Finding]:
        found = [each for each in scored if each[1].failed.mean() > self.failed]
        if not found:
            return
        reading, rollouts = found[-1]
        yield self.finding(
            "warning",
            [each for each, _ in found],
            f"reward functions failed on {rollouts.failed.mean():.0%} of rollouts",
            [
                f"{each.name}: {int(rows.failed.sum())} of {len(rows)}, such as "
                f"{rows.ids[int(rows.failed.argmax())].as_py()}"
                for each, rows in found[-4:]
            ],
            "a fault of a reward function; `rollbook show` of the rollout says which",
            _rewards(reading, "the function that failed, mended"),
        )

    def _bound(self, run: ChainReading, scored: Sequence[Scored]) -> Iterator[Finding]:
        known = [rollouts.known_rewards for _, rollouts in run.scored]
        if run.reward_range is None or len(np.unique(np.concatenate(known))) < self.values:
            return
        lowest, highest = run.reward_range
        for name, end in (("lowest", lowest), ("highest", highest)):
            found = [each for each in scored if (each[1].known_rewards == end).mean() > self.bound]
            if found:
                yield self.finding(
                    "warning",
                    [each for each, _ in found],
                    f"nearly every reward is the {name}, {end:.3g}",
                    [
                        f"{each.name}: {(rows.known_rewards == end).mean():.0%} of {len(rows)} rollouts"
                        for each, rows in found[-4:]
                    ],
                    "the reward is cut off at a bound that nearly all answers reach, so it tells them apart no longer"
                    + ("" if end < highest else "; or the prompts are solved"),
                    _rewards(found[-1][0], "one with room above and below these answers"),
                )

    def _silent_components(self, scored: Sequence[Scored]) -> Iterator[Finding]:
        for reading, rollouts in scored:
            for place, reward in enumerate(reading.recipe.score_rollouts.rewards):
                column = rollouts.component(reward)
                if column is not None and reward.weight and not np.isnan(rollouts.rewards).all():
                    yield from self._silent(reading, place, reward, column)

    def _silent(
        self, reading: Reading, place: int, reward: Reward, column: FloatArray
    ) -> Iterator[Finding]:
        label, values = reward.title, without_nan(column)
        if not values.size:
            said, cause = (
                f"reward {label} applies to no answer",
                "what it reads is missing or in another form, so the sum is without it",
            )
        elif values.min() < values.max() or (reward.name in self.penalties and not values.any()):
            return
        else:
            said, cause = (
                f"reward {label} is {values[0]:.3g} for every answer",
                "it has been learned, or does not look at the answer; in the sum it is a constant",
            )
        yield self.finding(
            "note",
            [reading],
            said,
            [f"{reading.name}: {len(column)} rollouts, of which {values.size} have it"],
            cause,
            reward_change(reading, place, "weight", 0.0),
        )


def _rewards(reading: Reading, suggested: str) -> Change:
    return change_of(reading, "score_rollouts.rewards", suggested)
