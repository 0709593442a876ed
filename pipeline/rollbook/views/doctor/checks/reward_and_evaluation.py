"""reward_and_evaluation: the held-out evaluation goes down, and the training reward goes up or does not.

Where it goes up, the reward pays for something that the scorer of the evaluation does not: the policy has found a way
around the task, or knows its training prompts by heart. Where it does not, updates make the policy worse; where a loss
takes no ratio, as `dpo`, nothing else shows it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import NonNegativeFloat

from rollbook.components.rewards.base import Reward
from rollbook.core.ids import BASE_KEY
from rollbook.rl.evaluation import Estimate, paired_difference, prompt_means
from rollbook.views.doctor.chain import ChainReading
from rollbook.views.doctor.checks.base import Check, change_of, slower, written
from rollbook.views.doctor.finding import Change, Finding
from rollbook.views.doctor.iteration import Reading
from rollbook.views.doctor.rollouts import Rollouts
from rollbook.views.doctor.statistics import difference, group_means, mean_of

PLAIN = {"weight": 1.0, "label": None}
"""What a reward weighs and is called unless it is told otherwise."""


class RewardAndEvaluation(Check):
    """An evaluation set that falls, while the reward rises or does not.

    Attributes:
        fall: by how much the set's mean must have fallen since its best policy, on the same prompts, beyond its 95 %
            interval; the best of several looks better than it is, by about the width of one interval (0.04 with 256
            prompts of 4 answers).
        rise: by how much the mean reward must have risen since, in deviations of the reward, beyond its 95 % interval;
            a tenth is less than the reward of the shipped params.yaml gains in one iteration.
    """

    fall: NonNegativeFloat = 0.04
    rise: NonNegativeFloat = 0.1

    def __call__(self, run: ChainReading) -> Iterator[Finding]:
        tables = {
            BASE_KEY: run.base_evaluation,
            **{each.key: each.evaluation for each in run.iterations},
        }
        evaluated = {key: table for key, table in tables.items() if table is not None}
        if len(evaluated) < 2 or not run.scored:
            return
        last = list(evaluated)[-1]
        for name in sorted(set(evaluated[last]["set"].to_pylist())):
            best = max(evaluated, key=lambda key: _mean(evaluated[key], name))
            fall = Estimate(*paired_difference(evaluated[best], evaluated[last], name))
            if best == last or not fall.high < -self.fall:
                continue
            fell = f"{best} to {last}: {name} {fall.text('+.3f')} on the same prompts"
            yield self._diverged(run, name, best, fall, fell) or self._worse(
                run, name, best, fall, fell
            )

    def _diverged(
        self, run: ChainReading, name: str, best: str, fall: Estimate, fell: str
    ) -> Finding | None:
        keys = [BASE_KEY, *run.keys]
        # What a policy is rewarded is known of the iteration after it, whose rollouts it makes.
        since = [each for each in run.scored if keys.index(each[0].keys[0]) > keys.index(best)]
        if len(since) < 2:
            return None
        before, after = (_reward(each) for _, each in (since[0], since[-1]))
        rewards = since[0][1].rewards
        rise = difference(before, after)
        if not rise.low > self.rise * float(np.nanstd(rewards)):
            return None
        reading = since[-1][0]
        return self.finding(
            "serious",
            [each for each, _ in since],
            f"the reward rose by {rise.mean:.2g} while {name} fell by {-fall.mean:.2g}",
            [
                fell,
                f"{since[0][0].key} to {reading.key}: mean reward {before.mean:.3g} to {after.mean:.3g}, "
                f"{rise.text('+.3g')}",
                f"highest reward of {reading.key}: {_highest(since[-1][1])}",
            ],
            *_why(run, reading),
        )

    def _worse(self, run: ChainReading, name: str, best: str, fall: Estimate, fell: str) -> Finding:
        keys = [BASE_KEY, *run.keys]
        since = [each for each in run.iterations if keys.index(each.key) > keys.index(best)]
        return self.finding(
            "warning",
            since,
            f"{name} fell by {-fall.mean:.2g} from its best, and the reward did not rise for it",
            [fell],
            "updates made the policy worse: their steps are too large for what they learned from",
            slower(since[-1], 3),
        )


def _why(run: ChainReading, reading: Reading) -> tuple[str, Change]:
    """Which of both causes it can be, by whether the reward and the scorer of the evaluation are the same."""
    scorer = run.params.evaluate_policy.scorer
    by_heart = "the policy knows its training prompts by heart"
    paid = [reward for reward in reading.recipe.score_rollouts.rewards if reward.weight]
    if all(_says_the_same(reward, scorer) for reward in paid):
        return (
            f"{by_heart}: it is rewarded for what the evaluation asks for, and nothing else",
            Change("data.train", written(run.params.data.train), "more prompts, or other ones"),
        )
    return (
        "the reward pays for what the evaluation does not, so the policy serves the reward and not the task; or "
        f"{by_heart}",
        change_of(reading, "score_rollouts.rewards", [scorer.model_copy(update=PLAIN)]),
    )


def _says_the_same(reward: Reward, scorer: Reward) -> bool:
    """Whether two rewards differ in nothing but what they are called, and what they weigh."""
    return reward.model_copy(update=PLAIN) == scorer.model_copy(update=PLAIN)


def _mean(table: pa.Table, name: str) -> float:
    rows = table.filter(pc.and_(pc.equal(table["set"], name), pc.invert(table["greedy"])))
    means = list(prompt_means(rows, "reward").values())
    return float(np.mean(means)) if means else -np.inf


def _reward(rollouts: Rollouts) -> Estimate:
    return mean_of(group_means(rollouts.rewards, rollouts.groups))


def _highest(rollouts: Rollouts) -> str:
    return str(rollouts.ids[int(np.nanargmax(rollouts.rewards))].as_py())
