"""Compute advantages: from the rewards of each group to what the update multiplies log-probs with.

Also decides which rollouts the update trains on, and writes down what came of every prompt asked.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BeforeValidator

from rollbook.components.advantages.base import AdvantageOutputs, FloatArray
from rollbook.components.advantages.metrics import advantage_metrics
from rollbook.components.advantages.moments import moments_of
from rollbook.components.coefficients import AdaptiveKl
from rollbook.components.rewards.base import Reward
from rollbook.core.component import Model
from rollbook.core.errors import ArtifactError
from rollbook.core.ragged import IntArray
from rollbook.project.dependencies import From, StageSettings
from rollbook.project.stage import Input, Output, Stage
from rollbook.rl.context import Context, Inputs, Outputs
from rollbook.rl.estimation import (
    advantages_table,
    aligned_logprobs,
    estimation_of,
    kept_rows,
    pairs_table,
    sampled_rows,
)
from rollbook.rl.history import Outcomes, extended
from rollbook.settings.recipe_sections import ComputeAdvantages
from rollbook.tables.columns import aligned, numbers_in

Flags = NDArray[np.bool_]


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
    """The estimator, where rewards stand in the scores table, how large groups should be, and how many are wanted."""

    compute_advantages: Annotated[ComputeAdvantages, From("recipe.compute_advantages")]
    rewards: Annotated[
        list[WeightedColumn], BeforeValidator(_columns_of), From("recipe.score_rollouts.rewards")
    ]
    group_size: Annotated[int, From("recipe.generate_rollouts.group_size")]
    prompts_per_iteration: Annotated[int, From("recipe.prepare_prompts.prompts_per_iteration")]
    oversample: Annotated[float, From("recipe.prepare_prompts.oversample")]


def compute_advantages(settings: Settings, inputs: Inputs, context: Context) -> Outputs:
    """Advantages table in the order of the rollouts, pairs of them, and the history of the chain's prompts.

    Raises:
        ArtifactError: if the tables do not belong together, a group is not of the size asked for, the tables lack what
            the estimator reads, or no group is left to train on.
    """
    rollouts = inputs.tables["rollouts"]
    scores = aligned(inputs.tables["scores"], rollouts, "scores")
    compute = settings.compute_advantages
    found = estimation_of(
        rollouts,
        scores,
        aligned_logprobs(inputs.tables["logprobs"], rollouts),
        compute,
        {reward.column: reward.weight for reward in settings.rewards},
        settings.group_size,
        _kl_coefficient(compute, inputs),
    )
    given, estimated = found.given, found.outputs
    sampled = sampled_rows(rollouts)
    kept = _kept(settings, given.groups, estimated, context)
    pairs = pairs_table(rollouts, found, kept)
    outcomes = _outcomes(
        rollouts.filter(pa.array(sampled)),
        given.groups,
        estimated.informative,
        numbers_in(scores["reward"])[sampled],
    )
    return Outputs(
        tables={
            "advantages": advantages_table(rollouts, found.groups, estimated, kept),
            "pairs": pairs,
            "history": extended(inputs.tables["history"], context.key, outcomes),
        },
        metrics={
            **advantage_metrics(estimated, given.rewards, given.groups),
            "kept_groups": len(np.unique(given.groups[kept])),
            **_pair_metrics(pairs),
            **found.kl_metrics,
        },
    )


def _kl_coefficient(compute: ComputeAdvantages, inputs: Inputs) -> float:
    """The coefficient of this iteration: one that follows a target travels with the optimizer's state."""
    if not isinstance(compute.kl_coef, AdaptiveKl):
        return compute.kl_coef
    from rollbook.rl.training.controllers import REWARD_KL_COEF, read_state, standing

    _, controllers = read_state(inputs.folders["optimizers"])
    return standing(compute.kl_coef, controllers, REWARD_KL_COEF)


def _pair_metrics(pairs: pa.Table) -> dict[str, float]:
    """How many pairs there are, and the mean difference of their rewards."""
    if not pairs.num_rows:
        return {}
    gaps = numbers_in(pairs["chosen_reward"]) - numbers_in(pairs["rejected_reward"])
    return {"pairs": pairs.num_rows, "pairs/reward_gap": float(gaps.mean())}


def _kept(
    settings: Settings, groups: IntArray, estimated: AdvantageOutputs, context: Context
) -> Flags:
    """[B] rows that the update trains on: all, those of informative groups, or of the first so many of these.

    Of an estimator that chooses rollouts only the chosen ones.

    Raises:
        ArtifactError: if none is left.
    """
    oversampled, chosen = settings.oversample > 1, kept_rows(estimated)
    if estimated.kept is not None and not chosen.any():
        estimator = settings.compute_advantages.estimator
        raise ArtifactError(
            f"estimator {estimator.name} chose none of {len(chosen)} rollouts, so there is nothing to train on",
            "look at the scores table: if all are right or all are wrong, ask easier or harder prompts; a larger "
            "group_size finds more, and so does a bound of the estimator (min_gap, min_reward) that asks for less",
        )
    if not (oversampled or settings.compute_advantages.drop_zero_signal):
        return chosen
    count = int(groups.max(initial=-1)) + 1
    keep = np.zeros(count, bool)
    keep[groups] = estimated.informative
    found, wanted = int(keep.sum()), settings.prompts_per_iteration
    if not found:
        raise ArtifactError(
            f"in none of {count} groups do the rewards differ, so there is nothing to train on",
            "look at the scores table: if all are right or all are wrong, ask easier or harder prompts; "
            "a larger group_size or temperature finds differences more often",
        )
    if oversampled:
        keep &= np.cumsum(keep) <= wanted
        if found < wanted:
            context.warn(
                f"in only {found} of {count} groups do the rewards differ, {wanted} were wanted: the update trains on "
                f"fewer; raise prepare_prompts.oversample (now {settings.oversample:g}), or set prefer: informative"
            )
    return keep[groups] & chosen


def _outcomes(
    rollouts: pa.Table, groups: IntArray, informative: Flags, rewards: FloatArray
) -> Outcomes:
    """What came of each prompt, by the sampled rollouts [B] and their rewards before clipping and KL."""
    first = np.unique(groups, return_index=True)[1]
    return Outcomes(
        prompt_ids=rollouts["prompt_id"].take(first).combine_chunks(),
        informative=informative[first],
        scored=np.bincount(groups[~np.isnan(rewards)], minlength=len(first)),
        mean_reward=moments_of(rewards, groups, ddof=0).mean[first],
    )


STAGE = Stage(
    name="compute_advantages",
    settings=Settings,
    run=compute_advantages,
    inputs=(
        Input("rollouts"),
        Input("scores"),
        Input("logprobs"),
        Input("history", key="previous"),
        # One number of it is read; its moments are gigabytes for a large model.
        Input("optimizers", key="previous", hashed=False),
    ),
    outputs=(Output("advantages"), Output("pairs"), Output("history")),
)

if __name__ == "__main__":
    STAGE.main()
