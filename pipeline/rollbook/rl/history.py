"""What became of the prompts a chain has asked: how the history table grows, and what it says of a prompt.

A prompt is flat if all its rollouts had the same reward when it was last asked: always solved or never, it taught
nothing then and is unlikely to now.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rollbook.tables.columns import numbers_in
from rollbook.tables.schemas.history import SCHEMA

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Outcomes:
    """What came of the prompts of one iteration, all [P].

    Attributes:
        prompt_ids: all different.
        informative: whether the rewards of its group differed.
        scored: sampled rollouts with a reward.
        mean_reward: over these; NaN without any.
    """

    prompt_ids: pa.Array
    informative: Flags
    scored: NDArray[np.int64]
    mean_reward: NDArray[np.float64]


@dataclass(frozen=True)
class Standing:
    """What a history says of some prompts, all [P].

    Attributes:
        asked: the chain has asked it before.
        flat: its rollouts all had the same reward when it was last asked.
    """

    asked: Flags
    flat: Flags


def standing_of(history: pa.Table, prompt_ids: pa.Array) -> Standing:
    """How prompts stand before they are asked."""
    informative = history["last_informative"].take(_places(history, prompt_ids))
    return Standing(
        asked=np.asarray(pc.is_valid(informative)),
        flat=np.asarray(pc.equal(pc.fill_null(informative, True), False)),
    )


def extended(history: pa.Table, iteration: str, outcomes: Outcomes) -> pa.Table:
    """The history after one more iteration. Its prompts stand at the end, so rows go by when they were last asked.

    Args:
        history: of the predecessor.
        iteration: key of the iteration that asked.
        outcomes: what came of its prompts.
    """
    before = history.take(_places(history, outcomes.prompt_ids))  # null for prompts that are new
    times, informative, scored = (
        pc.fill_null(before[name], 0).to_numpy()
        for name in ("times_asked", "times_informative", "scored_rollouts")
    )
    rollouts = scored + outcomes.scored
    total = np.nan_to_num(numbers_in(before["mean_reward"])) * scored
    total += np.nan_to_num(outcomes.mean_reward) * outcomes.scored
    with np.errstate(invalid="ignore"):
        mean = total / rollouts
    asked_now = SCHEMA.build(
        {
            "prompt_id": outcomes.prompt_ids,
            "iteration": [iteration] * len(rollouts),
            "times_asked": times + 1,
            "times_informative": informative + outcomes.informative,
            "scored_rollouts": rollouts,
            "mean_reward": pa.array(mean, from_pandas=True),
            "last_iteration": [iteration] * len(rollouts),
            "last_informative": outcomes.informative,
            "last_mean_reward": pa.array(outcomes.mean_reward, from_pandas=True),
        }
    )
    others = history.filter(
        pc.invert(pc.is_in(history["prompt_id"], value_set=outcomes.prompt_ids))
    )
    label = pa.array([iteration]).take(pa.array(np.zeros(others.num_rows, np.int64)))
    place = others.column_names.index("iteration")
    return pa.concat_tables(
        [others.set_column(place, "iteration", label), asked_now.select(others.column_names)]
    ).combine_chunks()


def _places(history: pa.Table, prompt_ids: pa.Array) -> pa.Array:
    """[P] rows of prompts in the history; null where it has none."""
    return pc.index_in(prompt_ids, value_set=history["prompt_id"].combine_chunks())
