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
from pipeline.config import BASE_KEY, Params
from pipeline.doctor.iteration import Reading, evaluation_of, is_made_of, numbers_of
from pipeline.doctor.rollouts import Rollouts
from pipeline.doctor.statistics import FEWEST_GROUPS
from pipeline.ragged import IntArray
from pipeline.showing.tables import stored

COMMAND = "rollbook doctor"
MADE = {
    "prepare_prompts": "prompts",
    "generate_rollouts": "rollouts",
    "score_rollouts": "scores",
    "evaluate_policy": "evaluations",
}
"""Tables that checks need, by the stage that makes them."""


class Readings:
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

    def having(self, *metrics: str) -> list[Reading]:
        """Iterations whose metrics hold all of these."""
        return [
            reading
            for reading in self.iterations
            if all(name in reading.metrics for name in metrics)
        ]

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
        """Paths of tables of finished steps that are not on disk, so that checks say nothing of them."""
        return [
            path_of(kind, key).as_posix()
            for key in (BASE_KEY, *self.keys)
            for stage, kind in MADE.items()
            if path_of(f"metrics/{stage}", key).exists() and not path_of(kind, key).exists()
        ]

    @property
    def outdated(self) -> list[str]:
        """Paths of scores that were made from other rollouts than those on disk, so that neither is looked at."""
        both = {key: (stored("rollouts", key), stored("scores", key)) for key in self.keys}
        return [
            scores.path.as_posix()
            for rollouts, scores in both.values()
            if rollouts is not None and scores is not None and not is_made_of(scores, rollouts)
        ]

    @property
    def has_base(self) -> bool:
        """Whether there are data, or an evaluation of the base policy, to look at."""
        return bool(self.base_metrics) or path_of("data", "train").exists()


def readings_of(params: Params, chain: str = "") -> Readings:
    """What is stored of a chain.

    Args:
        params: of the project.
        chain: an iteration; its chain is that from the base policy up to it. Default: the last iteration of
            params.yaml that has begun.

    Raises:
        ConfigError: if there is no such iteration.
    """
    return Readings(params, tip_of(params, chain, COMMAND))


def _is_small(pool: Sequence[Reading]) -> bool:
    groups = sum(
        len(reading.rollouts.group_ids) for reading in pool if reading.rollouts is not None
    )
    return groups < FEWEST_GROUPS


def _recipes(*pools: Sequence[Reading]) -> int:
    return len({reading.recipe_name for pool in pools for reading in pool})
