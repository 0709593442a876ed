"""What checks read: the metrics, tables and settings of one chain of iterations, each when it is first asked for.

Tables are opened for a look, column by column (`rollbook.project.run.stored`): nothing is hashed, no policy is opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rollbook.core.ids import BASE_KEY
from rollbook.core.ragged import IntArray
from rollbook.project.run.chain import Chain
from rollbook.project.run.run import Run
from rollbook.tables.artifacts import path_of
from rollbook.views.doctor.iteration import Reading, has_sampled
from rollbook.views.doctor.rollouts import Rollouts
from rollbook.views.doctor.statistics import FEWEST_GROUPS

COMMAND = "rollbook doctor"
MADE = {
    "prepare_prompts": "prompts",
    "generate_rollouts": "rollouts",
    "score_rollouts": "scores",
    "compute_advantages": "advantages",
    "update_policy": "optimizer_steps",
    "evaluate_policy": "evaluations",
}
"""Tables of iterations that checks need, by the stage that makes them."""
JOINED = (("scores", "rollouts"), ("advantages", "scores"))
"""Tables whose rows are looked up by those of another that they must have been made from."""


class ChainReading:
    """One chain of iterations, as far as it is finished.

    Attributes:
        run: that the chain is part of.
        params: of the run, as the file has them now.
        keys: iterations of the chain that have begun, in order.
    """

    def __init__(self, chain: Chain) -> None:
        self._chain, self.run, self.params = chain, chain.run, chain.run.params
        self.keys = [item.key for item in chain.begun]

    @cached_property
    def iterations(self) -> list[Reading]:
        """Its iterations, in order."""
        return [Reading(self.run, key) for key in self.keys]

    @cached_property
    def first(self) -> Reading | None:
        """The first iteration of the chain, run or not; None if there is none."""
        return Reading(self.run, self._chain.keys[0]) if self._chain.keys else None

    @cached_property
    def scored(self) -> list[tuple[Reading, Rollouts]]:
        """Iterations whose rollouts and scores are on disk, with them.

        Neighbours of one recipe that have fewer than `FEWEST_GROUPS` are looked at together, or chance would decide.
        """
        pools: list[list[Reading]] = []
        for reading in self.iterations:
            if reading.rollouts is None:
                continue
            if pools and reading.recipe_name == pools[-1][-1].recipe_name and _is_small(pools[-1]):
                pools[-1].append(reading)
            else:
                pools.append([reading])
        if len(pools) > 1 and _is_small(pools[-1]) and _recipes(*pools[-2:]) == 1:
            pools[-2:] = [[*pools[-2], *pools[-1]]]
        found = (pool[0] if len(pool) == 1 else self._pooled(pool) for pool in pools)
        return [(reading, reading.rollouts) for reading in found if reading.rollouts is not None]

    def _pooled(self, pool: Sequence[Reading]) -> Reading:
        return Reading(self.run, pool[-1].key, [reading.key for reading in pool])

    @cached_property
    def reward_range(self) -> tuple[float, float] | None:
        """The lowest and the highest reward of the chain; None unless two of them differ."""
        known = [rollouts.known_rewards for _, rollouts in self.scored]
        lowest = min((float(each.min()) for each in known if each.size), default=0.0)
        highest = max((float(each.max()) for each in known if each.size), default=0.0)
        return (lowest, highest) if lowest < highest else None

    def having(self, *metrics: str) -> list[Reading]:
        """Iterations whose metrics hold all of these."""
        return [
            reading
            for reading in self.iterations
            if all(name in reading.metrics for name in metrics)
        ]

    @cached_property
    def taught(self) -> list[Reading]:
        """Iterations in which the chain's last critic learned, in order.

        It began anew where the iteration before has none, or one of another kind.
        """
        found: list[Reading] = []
        label = ""
        for reading in reversed(self.iterations):
            critic = reading.recipe.update_policy.critic
            here = "" if critic is None else critic.label
            if found and here != label:
                break
            if here:
                label = here
                found.append(reading)
        return found[::-1]

    @cached_property
    def base(self) -> Reading:
        """The base policy."""
        return Reading(self.run, BASE_KEY)

    @property
    def base_metrics(self) -> Mapping[str, float]:
        """Of the evaluation of the base policy; empty where there is none."""
        return self.base.metrics

    @cached_property
    def base_lengths(self) -> IntArray | None:
        """Tokens that the sampled answers of the base policy's evaluation need at least, one more than it has for an
        answer that is cut off; None where they are not on disk."""
        table = self.base.find_table("evaluations")
        if table is None:
            return None
        sampled = pc.invert(table.column("greedy"))
        lengths = pc.list_value_length(table.column("loss_mask").filter(sampled)).to_numpy()
        cut = pc.equal(table.column("finish_reason").filter(sampled), "length").to_numpy()
        needed: IntArray = lengths.astype(np.int64) + cut
        return needed

    @property
    def base_evaluation(self) -> pa.Table | None:
        """As `Reading.evaluation`."""
        return self.base.evaluation

    @property
    def missing(self) -> list[str]:
        """Paths of tables or metrics that are not on disk beside the other, so that checks say nothing of them."""
        made = [
            *(("prepare_data", BASE_KEY, "data", part) for part in ("train", "evaluation")),
            *(
                (stage, key, kind, key)
                for key in (BASE_KEY, *self.keys)
                for stage, kind in MADE.items()
            ),
        ]
        lost = [
            path_of(kind, part) if has_metrics else path_of(f"metrics/{stage}", key)
            for stage, key, kind, part in made
            if self.run.has(kind, part) != (has_metrics := self.run.has_metrics(stage, key))
        ]
        return list(dict.fromkeys(each.as_posix() for each in lost))

    @property
    def empty(self) -> list[str]:
        """Paths of tables without a sampled rollout, of which nothing can be said, and of metrics without a number."""
        rollouts = [
            path_of("rollouts", item.key)
            for item in self.iterations
            if (table := item.find_table("rollouts")) is not None and not has_sampled(table)
        ]
        metrics = [
            path_of(f"metrics/{stage}", key)
            for key in self.keys
            for stage in MADE
            if stage != "evaluate_policy"  # not every policy is evaluated
            if self.run.has_metrics(stage, key)
            if all(value is None for value in self.run.metrics(stage, key).values())
        ]
        return [each.as_posix() for each in (*rollouts, *metrics)]

    @property
    def outdated(self) -> list[str]:
        """Paths of tables that were made from others than those on disk, so that they are not looked at together."""
        return [
            table.path.as_posix()
            for item in self.iterations
            for kind, origin in JOINED
            if (table := item.find_table(kind))
            and (source := item.find_table(origin))
            and not table.facts.is_made_of(source.facts)
        ]

    @property
    def changed(self) -> list[str]:
        """Iterations that params.yaml has another recipe for now than they ran with."""
        return [reading.key for reading in self.iterations if reading.is_changed]

    @property
    def has_base(self) -> bool:
        """Whether there are data, or an evaluation of the base policy, to look at."""
        return bool(self.base_metrics) or self.run.has("data", "train")


def chain_reading_of(run: Run, chain: str = "") -> ChainReading:
    """What is stored of a chain.

    Args:
        run: that it is part of.
        chain: an iteration; its chain is that from the base policy up to it. Default: the last iteration of
            params.yaml that has begun.

    Raises:
        ConfigError: if there is no such iteration.
    """
    return ChainReading(run.chain(chain, COMMAND))


def _is_small(pool: Sequence[Reading]) -> bool:
    groups = sum(
        len(reading.rollouts.group_ids) for reading in pool if reading.rollouts is not None
    )
    return groups < FEWEST_GROUPS


def _recipes(*pools: Sequence[Reading]) -> int:
    return len({reading.recipe_name for pool in pools for reading in pool})
