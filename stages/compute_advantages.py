"""Compute advantages: from the rewards of each group to what the update multiplies log-probs with."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BeforeValidator

from pipeline.advantages.base import AdvantageInputs, AdvantageOutputs, IntArray
from pipeline.advantages.metrics import advantage_metrics
from pipeline.component import Model
from pipeline.config import ComputeAdvantages
from pipeline.errors import ArtifactError
from pipeline.plan import From, StageSettings
from pipeline.rewards.base import Reward
from pipeline.rewards.totals import numbers_in
from pipeline.schemas.advantages import SCHEMA
from pipeline.schemas.base import TOKEN_FLOATS
from pipeline.schemas.rollouts import IDS
from pipeline.stage import Context, Input, Inputs, Output, Outputs, Stage


class WeightedColumn(Model):
    """Where a reward stands in the scores table. Its code is no concern of this stage."""

    column: str
    weight: float


def _columns_of(rewards: Any) -> Any:
    return [
        WeightedColumn(column=reward.column, weight=reward.weight)
        if isinstance(reward, Reward)
        else reward
        for reward in rewards
    ]


class Settings(StageSettings):
    """The estimator, where rewards stand in the scores table, and how large groups should be."""

    compute_advantages: Annotated[ComputeAdvantages, From("recipe.compute_advantages")]
    rewards: Annotated[
        list[WeightedColumn], BeforeValidator(_columns_of), From("recipe.score_rollouts.rewards")
    ]
    group_size: Annotated[int, From("recipe.generate_rollouts.group_size")]


def compute_advantages(settings: Settings, inputs: Inputs, context: Context) -> Outputs:
    """Advantages table in the order of the rollouts.

    Raises:
        ArtifactError: if scores and rollouts do not belong together, or a group is not of the size asked for.
    """
    rollouts = inputs.tables["rollouts"]
    scores = _aligned(inputs.tables["scores"], rollouts)
    groups = _group_labels(rollouts, settings.group_size)
    if settings.group_size == 2:
        context.warn(
            "with group_size 2 every pair that differs gives plus and minus the same advantage, whatever the gap "
            "between the rewards; 4 or more tells a little from a lot"
        )
    estimated = settings.compute_advantages.estimator(
        AdvantageInputs(
            rewards=numbers_in(scores["reward"]),
            groups=groups,
            components=np.column_stack([numbers_in(scores[r.column]) for r in settings.rewards]),
            weights=np.array([reward.weight for reward in settings.rewards]),
            lengths=_trained_tokens(rollouts["loss_mask"]),
        )
    )
    return Outputs(
        tables={"advantages": _table(rollouts, estimated)},
        metrics=advantage_metrics(estimated, numbers_in(scores["reward"]), groups),
    )


def _aligned(scores: pa.Table, rollouts: pa.Table) -> pa.Table:
    """Scores in the order of the rollouts."""
    places = pc.index_in(rollouts["rollout_id"], value_set=scores["rollout_id"].combine_chunks())
    if places.null_count or scores.num_rows != rollouts.num_rows:
        missing = rollouts["rollout_id"].filter(pc.is_null(places)).slice(0, 1).to_pylist()
        raise ArtifactError(
            f"scores ({scores.num_rows} rows) and rollouts ({rollouts.num_rows} rows) do not name the same rollouts"
            + (f"; {missing[0]} has no score" if missing else ""),
            "score again: run `dvc repro`",
        )
    return scores.take(places)


def _group_labels(rollouts: pa.Table, group_size: int) -> IntArray:
    """[B] integer label of each group."""
    encoded = rollouts["group_id"].combine_chunks().dictionary_encode()
    labels: IntArray = encoded.indices.to_numpy().astype(np.int64)
    sizes = np.bincount(labels, minlength=1)
    if rollouts.num_rows and (wrong := np.flatnonzero(sizes != group_size)).size:
        raise ArtifactError(
            f"{wrong.size} of {sizes.size} groups do not have {group_size} rollouts "
            f"(generate_rollouts.group_size), such as {encoded.dictionary[int(wrong[0])]} with {sizes[wrong[0]]}",
            "generate again: run `dvc repro`",
        )
    return labels


def _trained_tokens(loss_mask: pa.ChunkedArray) -> IntArray:
    """[B] tokens that are trained on."""
    lists = loss_mask.combine_chunks()
    rows, flags = pc.list_parent_indices(lists).to_numpy(), pc.list_flatten(lists)
    return np.bincount(rows[flags.to_numpy(zero_copy_only=False)], minlength=len(lists))


def _table(rollouts: pa.Table, estimated: AdvantageOutputs) -> pa.Table:
    rows = rollouts.num_rows
    return SCHEMA.build(
        {
            **{name: rollouts[name] for name in IDS},
            "advantage": pa.array(estimated.advantages),
            "token_advantages": pa.nulls(rows, TOKEN_FLOATS),
            "group_mean": pa.array(estimated.group_mean, from_pandas=True),
            "group_std": pa.array(estimated.group_std, from_pandas=True),
            "informative": pa.array(estimated.informative),
            "kept": pa.array(np.ones(rows, dtype=bool)),
        }
    )


STAGE = Stage(
    name="compute_advantages",
    settings=Settings,
    run=compute_advantages,
    inputs=(Input("rollouts"), Input("scores"), Input("logprobs")),
    outputs=(Output("advantages"),),
)

if __name__ == "__main__":
    STAGE.main()
