"""From rollouts, their scores and log-probs to what an estimator sees, and from its advantages back to a table.

Estimators see sampled rollouts only. A greedy rollout is a baseline: its reward stands beside those of its group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rollbook.components.advantages.base import AdvantageInputs, AdvantageOutputs, FloatArray
from rollbook.components.advantages.kl_reward import (
    penalized,
    token_kl,
    token_mean,
    token_penalties,
)
from rollbook.components.advantages.moments import moments_of
from rollbook.core.errors import ArtifactError
from rollbook.core.ids import mixed, pair_id_of, seed_of
from rollbook.core.ragged import IntArray, Ragged
from rollbook.settings.recipe_sections import ComputeAdvantages
from rollbook.tables.artifacts import schema_of
from rollbook.tables.columns import aligned, group_labels, numbers_in, per_token

Flags = NDArray[np.bool_]
Scalar = TypeVar("Scalar", np.float64, np.bool_)


def aligned_logprobs(logprobs: pa.Table, rollouts: pa.Table) -> pa.Table:
    """Log-probs in the order of the rollouts, which are an empty table where the recipe needs none."""
    return aligned(logprobs, rollouts, "logprobs") if logprobs.num_rows else logprobs


def has_measured(logprobs: pa.Table, *names: str) -> bool:
    """Whether a logprobs table holds these columns for every rollout."""
    return logprobs.num_rows > 0 and not any(logprobs[name].null_count for name in names)


def sampled_rows(rollouts: pa.Table) -> Flags:
    """[R] rollouts that are not greedy."""
    return np.asarray(~rollouts["greedy"].to_numpy())


def sampled_loss_mask(rollouts: pa.Table) -> Ragged:
    """Loss mask of the sampled rollouts, as the engine gave it."""
    rows = np.flatnonzero(sampled_rows(rollouts))
    return Ragged.from_column(rollouts["loss_mask"].take(rows))


def groups_of(rollouts: pa.Table, group_size: int) -> IntArray:
    """[R] label of each rollout's group, greedy rollouts included.

    Raises:
        ArtifactError: if a group does not have `group_size` sampled rollouts.
    """
    labels = group_labels(rollouts)
    sizes = np.bincount(labels[sampled_rows(rollouts)], minlength=labels.max(initial=-1) + 1)
    if (wrong := np.flatnonzero(sizes != group_size)).size:
        first = rollouts["group_id"][int((labels == wrong[0]).argmax())]
        raise ArtifactError(
            f"{wrong.size} of {sizes.size} groups do not have {group_size} rollouts "
            f"(generate_rollouts.group_size), such as {first} with {sizes[wrong[0]]}",
            "generate again: run `dvc repro`",
        )
    return labels


def estimator_inputs(
    rollouts: pa.Table,
    scores: pa.Table,
    logprobs: pa.Table,
    groups: IntArray,
    weights: Mapping[str, float],
    reward_clip: tuple[float, float] | None = None,
) -> AdvantageInputs:
    """What the tables hold about the sampled rollouts, [B] of [R] rows. No KL is taken off the rewards yet.

    Args:
        rollouts: [R] rows.
        scores: in their order.
        logprobs: in their order, or empty.
        groups: [R] labels.
        weights: of each reward by its column in `scores`.
        reward_clip: bounds of the total rewards; the greedy ones are held to them too.

    Raises:
        ArtifactError: if the scores were made with other rewards.
    """
    if missing := [name for name in weights if name not in scores.column_names]:
        raise ArtifactError(
            f"the scores table has no column {missing[0]}: it was made with other rewards",
            "score again: run `dvc repro`",
        )
    sampled = sampled_rows(rollouts)
    rows = np.flatnonzero(sampled)
    rewards = numbers_in(scores["reward"])
    if reward_clip is not None:
        rewards = np.clip(rewards, *reward_clip)
    steps = scores["step_rewards"].take(rows)
    has_steps = steps.null_count < len(steps)
    has_values = has_measured(logprobs, "values")
    return AdvantageInputs(
        rewards=rewards[sampled],
        groups=groups[sampled],
        components=np.column_stack([numbers_in(scores[name])[sampled] for name in weights]),
        weights=np.array(list(weights.values())),
        loss_mask=sampled_loss_mask(rollouts),
        greedy_rewards=None if sampled.all() else _of_group(rewards, groups, ~sampled)[sampled],
        step_ends=_steps(steps, "end") if has_steps else None,
        step_rewards=_steps(steps, "value") if has_steps else None,
        values=per_token(logprobs, "values", rollouts).rows(rows) if has_values else None,
    )


def old_and_reference(logprobs: pa.Table, rollouts: pa.Table) -> tuple[Ragged, Ragged]:
    """Log-probs of the sampled rollouts' tokens under the policy before the update and under the reference.

    Args:
        logprobs: in the order of the rollouts, or empty.
        rollouts: [R] rows.

    Raises:
        ArtifactError: if they were not measured.
    """
    for name in ("old_logprobs", "ref_logprobs"):
        if logprobs.num_rows != rollouts.num_rows or logprobs[name].null_count:
            raise ArtifactError(
                f"compute_advantages.kl_coef takes the KL to the reference off the rewards, "
                f"and the logprobs table has no {name}",
                "run `dvc repro`: measure_logprobs must run again",
            )
    rows = np.flatnonzero(sampled_rows(rollouts))
    old, ref = (per_token(logprobs, name, rollouts) for name in ("old_logprobs", "ref_logprobs"))
    return old.rows(rows), ref.rows(rows)


def estimate(
    compute: ComputeAdvantages,
    given: AdvantageInputs,
    measured: tuple[Ragged, Ragged] | None,
    kl_coef: float,
) -> tuple[AdvantageOutputs, dict[str, float]]:
    """Advantages of the sampled rollouts, and numbers about the KL that was taken off their rewards, if any was.

    To an estimator that compares siblings, a group whose rewards differ by their KL alone is not informative: it says
    nothing about the task.

    Args:
        compute: estimator, and how the KL is estimated.
        given: of `estimator_inputs`.
        measured: of `old_and_reference`; None: no KL is taken off.
        kl_coef: value of the coefficient in this iteration.
    """
    if measured is None:
        return compute.estimator(given), {}
    old, ref = measured
    penalties = token_penalties(old, ref, given.loss_mask, kl_coef, compute.kl_estimator)
    estimated = compute.estimator(
        replace(given, rewards=penalized(given.rewards, penalties), token_penalties=penalties)
    )
    informative = estimated.informative
    if compute.estimator.needs_siblings:
        informative = informative & moments_of(given.rewards, given.groups, ddof=0).spread
    kl = token_kl(old, ref, given.loss_mask, compute.kl_estimator)
    return (
        replace(estimated, informative=informative),
        {"kl": token_mean(kl, given.loss_mask), "kl_coef": kl_coef},
    )


@dataclass(frozen=True)
class Estimation:
    """What an estimator made of the tables of an iteration.

    Attributes:
        groups: [R] label of each rollout's group, greedy rollouts included.
        given: what the estimator saw: the [B] sampled rollouts, without the KL in their rewards.
        outputs: [B] its advantages.
        kl_metrics: about the KL that was taken off the rewards, if any was.
    """

    groups: IntArray
    given: AdvantageInputs
    outputs: AdvantageOutputs
    kl_metrics: Mapping[str, float]


def estimation_of(
    rollouts: pa.Table,
    scores: pa.Table,
    logprobs: pa.Table,
    compute: ComputeAdvantages,
    weights: Mapping[str, float],
    group_size: int,
    kl_coef: float,
) -> Estimation:
    """From tables to advantages: the one path of training, re-scoring and what-if.

    Args:
        rollouts: [R] rows.
        scores, logprobs: in their order; log-probs may be empty.
        compute: estimator, reward clip, and how a KL in the reward is estimated.
        weights: of each reward by its column in `scores`.
        group_size: sampled rollouts that every group must have.
        kl_coef: value of the coefficient in this iteration; not looked at if there is no KL in the reward.

    Raises:
        ArtifactError: if the tables do not belong together, or lack what the estimator reads.
    """
    groups = groups_of(rollouts, group_size)
    given = estimator_inputs(rollouts, scores, logprobs, groups, weights, compute.reward_clip)
    sampled, estimator = pa.array(sampled_rows(rollouts)), compute.estimator
    if estimator.needs_draws:
        given = replace(given, draws=draws_of(rollouts["seed"].filter(sampled)))
    if estimator.needs_texts:
        texts = rollouts["text"].filter(sampled).combine_chunks().dictionary_encode()
        given = replace(given, texts=texts.indices.to_numpy().astype(np.int64))
    measured = old_and_reference(logprobs, rollouts) if compute.needs_reference else None
    outputs, kl_metrics = estimate(compute, given, measured, kl_coef)
    return Estimation(groups, given, outputs, kl_metrics)


def draws_of(seeds: pa.ChunkedArray) -> FloatArray:
    """A number in [0, 1) from the seed of each rollout, which says nothing about how the rollout was drawn."""
    numbers = mixed(seeds.to_numpy().astype(np.uint64) ^ np.uint64(seed_of("estimator")))
    return (numbers >> np.uint64(11)).astype(np.float64) / 2.0**53


def pairs_table(rollouts: pa.Table, estimation: Estimation, kept: Flags) -> pa.Table:
    """One row per pair of the estimator whose rollouts are kept; empty where it makes none.

    Args:
        rollouts: [R] rows.
        estimation: of them.
        kept: [B] of the sampled rows.
    """
    pairs, rewards = estimation.outputs.pairs, estimation.given.rewards
    if pairs is None:
        return schema_of("pairs").empty()
    pairs = pairs[kept[pairs].all(1)]
    places = np.flatnonzero(sampled_rows(rollouts))[pairs]
    ids = [rollouts["rollout_id"].take(rows).to_pylist() for rows in places.T]
    columns = ("group_id", "prompt_id", "iteration")
    return schema_of("pairs").build(
        {
            "pair_id": [pair_id_of(*both) for both in zip(*ids, strict=True)],
            **{name: rollouts[name].take(places[:, 0]) for name in columns},
            "chosen_id": ids[0],
            "rejected_id": ids[1],
            "chosen_reward": rewards[pairs[:, 0]],
            "rejected_reward": rewards[pairs[:, 1]],
        }
    )


def kept_rows(outputs: AdvantageOutputs) -> Flags:
    """[B] rows that the estimator leaves in the update."""
    return np.ones(len(outputs.advantages), bool) if outputs.kept is None else outputs.kept


def advantages_table(
    rollouts: pa.Table, groups: IntArray, estimated: AdvantageOutputs, kept: Flags
) -> pa.Table:
    """One row per rollout in their order. Greedy ones have advantage 0, their group's statistics, and are not kept.

    Args:
        rollouts: [R] rows.
        groups: [R] labels.
        estimated: of the [B] sampled rows.
        kept: [B] of the sampled rows.
    """
    # Here: only this writes a table, and what only reads starts twice as fast without schemas.
    from rollbook.tables.schemas.rollouts import IDS

    sampled = sampled_rows(rollouts)

    def everywhere(values: NDArray[Scalar]) -> NDArray[Scalar]:
        """[R] from a statistic of groups given for [B]."""
        found = np.zeros(len(sampled), values.dtype)
        found[sampled] = values
        return _of_group(found, groups, sampled)

    advantages, kept_rows = np.zeros(len(sampled)), np.zeros(len(sampled), bool)
    advantages[sampled], kept_rows[sampled] = estimated.advantages, kept
    return schema_of("advantages").build(
        {
            **{name: rollouts[name] for name in IDS},
            "advantage": pa.array(advantages),
            "token_advantages": _token_column(rollouts, estimated.token_advantages, sampled),
            "token_returns": _token_returns(rollouts, estimated, sampled),
            "group_mean": pa.array(everywhere(estimated.group_mean), from_pandas=True),
            "group_std": pa.array(everywhere(estimated.group_std), from_pandas=True),
            "informative": pa.array(everywhere(estimated.informative)),
            "kept": pa.array(kept_rows),
        }
    )


def _token_returns(rollouts: pa.Table, estimated: AdvantageOutputs, sampled: Flags) -> pa.Array:
    """Null for greedy rollouts, and for those without a reward."""
    given = estimated.returns
    has = sampled.copy()
    if given is not None:
        has[sampled] = Ragged(np.isnan(given.values), given.lengths).counts() == 0
    return _token_column(rollouts, given, sampled, has)


def _token_column(
    rollouts: pa.Table, given: Ragged | None, sampled: Flags, valid: Flags | None = None
) -> pa.Array:
    """A list per rollout: what was estimated for tokens of a sampled one, 0 for greedy ones; null if not `valid`."""
    if given is None:
        return pa.nulls(rollouts.num_rows)
    lengths = Ragged.from_column(rollouts["loss_mask"]).lengths
    tokens = Ragged(np.zeros(lengths.sum()), lengths)
    tokens.values[tokens.places(np.flatnonzero(sampled))] = given.values
    return tokens.to_column(valid)


def _of_group(values: NDArray[Scalar], groups: IntArray, rows: Flags) -> NDArray[Scalar]:
    """[R] the value that one of `rows` in each row's group has; NaN or False where the group has none of them."""
    missing = np.nan if values.dtype.kind == "f" else False
    found = np.full(groups.max(initial=-1) + 1, missing, values.dtype)
    found[groups[rows]] = values[rows]
    return found[groups]


def _steps(column: pa.ChunkedArray, field: str) -> Ragged:
    """One field of the steps of each row; a row without steps has an empty list."""
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64)
    return Ragged(pc.struct_field(pc.list_flatten(column), field).to_numpy(), lengths)
