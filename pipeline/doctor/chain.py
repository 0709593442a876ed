"""What checks read: the metrics, tables and settings of one chain of iterations, each when it is first asked for.

Tables are opened for a look, column by column (`pipeline.showing.tables`): nothing is hashed, no policy is opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.artifacts import path_of
from pipeline.chain_tips import has_begun, tip_of
from pipeline.config import Params
from pipeline.doctor.iteration import (
    Reading,
    evaluation_of,
    has_sampled,
    is_made_of,
    numbers_of,
)
from pipeline.doctor.rollouts import Rollouts
from pipeline.doctor.statistics import FEWEST_GROUPS
from pipeline.ids import BASE_KEY
from pipeline.ragged import IntArray
from pipeline.showing.tables import stored

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
        params: as the file has them now.
        keys: iterations of the chain that have begun, in order.
    """

    def __init__(self, params: Params, tip: str) -> None:
        self.params = params
        self._chain = params.chain(tip)
        self.keys = [key for key in self._chain if has_begun(key)]

    @cached_property
    def iterations(self) -> list[Reading]:
        """Its iterations, in order."""
        return [Reading(key, self.params) for key in self.keys]

    @cached_property
    def first(self) -> Reading | None:
        """The first iteration of the chain, run or not; None if there is none."""
        return Reading(self._chain[0], self.params) if self._chain else None

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
        return Reading(pool[-1].key, self.params, [reading.key for reading in pool])

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
    def base_metrics(self) -> dict[str, float]:
        """Of the evaluation of the base policy; empty where there is none."""
        return numbers_of("evaluate_policy", BASE_KEY)

    @cached_property
    def base_lengths(self) -> IntArray | None:
        """Tokens that the sampled answers of the base policy's evaluation need at least, one more than it has for an
        answer that is cut off; None where they are not on disk."""
        table = stored("evaluations", BASE_KEY)
        if table is None:
            return None
        sampled = pc.invert(table.column("greedy"))
        lengths = pc.list_value_length(table.column("loss_mask").filter(sampled)).to_numpy()
        cut = pc.equal(table.column("finish_reason").filter(sampled), "length").to_numpy()
        needed: IntArray = lengths.astype(np.int64) + cut
        return needed

    @cached_property
    def base_evaluation(self) -> pa.Table | None:
        """As `Reading.evaluation`."""
        return evaluation_of(BASE_KEY)

    @property
    def missing(self) -> list[str]:
        """Paths of tables or metrics that are not on disk beside the other, so that checks say nothing of them."""
        made = [
            *(
                ("prepare_data", BASE_KEY, path_of("data", part))
                for part in ("train", "evaluation")
            ),
            *(
                (stage, key, path_of(kind, key))
                for key in (BASE_KEY, *self.keys)
                for stage, kind in MADE.items()
            ),
        ]
        beside = [(path, path_of(f"metrics/{stage}", key)) for stage, key, path in made]
        lost = [
            path if metrics.exists() else metrics
            for path, metrics in beside
            if path.exists() != metrics.exists()
        ]
        return list(dict.fromkeys(each.as_posix() for each in lost))

    @property
    def empty(self) -> list[str]:
        """Paths of tables without a sampled rollout, of which nothing can be said, and of metrics without a number."""
        rollouts = [
            path_of("rollouts", key)
            for key in self.keys
            if (table := stored("rollouts", key)) is not None and not has_sampled(table)
        ]
        metrics = [
            path
            for key in self.keys
            for stage in MADE
            if stage != "evaluate_policy"  # not every policy is evaluated
            if (path := path_of(f"metrics/{stage}", key)).exists()
            if not numbers_of(stage, key)
        ]
        return [each.as_posix() for each in (*rollouts, *metrics)]

    @property
    def outdated(self) -> list[str]:
        """Paths of tables that were made from others than those on disk, so that they are not looked at together."""
        return [
            table.path.as_posix()
            for key in self.keys
            for kind, origin in JOINED
            if (table := stored(kind, key)) is not None
            and (source := stored(origin, key)) is not None
            and not is_made_of(table, source)
        ]

    @property
    def changed(self) -> list[str]:
        """Iterations that params.yaml has another recipe for now than they ran with."""
        return [reading.key for reading in self.iterations if reading.is_changed]

    @property
    def has_base(self) -> bool:
        """Whether there are data, or an evaluation of the base policy, to look at."""
        return bool(self.base_metrics) or path_of("data", "train").exists()


def chain_reading_of(params: Params, chain: str = "") -> ChainReading:
    """What is stored of a chain.

    Args:
        params: of the project.
        chain: an iteration; its chain is that from the base policy up to it. Default: the last iteration of
            params.yaml that has begun.

    Raises:
        ConfigError: if there is no such iteration.
    """
    return ChainReading(params, tip_of(params, chain, COMMAND))


def _is_small(pool: Sequence[Reading]) -> bool:
    groups = sum(
        len(reading.rollouts.group_ids) for reading in pool if reading.rollouts is not None
    )
    return groups < FEWEST_GROUPS


def _recipes(*pools: Sequence[Reading]) -> int:
    return len({reading.recipe_name for pool in pools for reading in pool})
