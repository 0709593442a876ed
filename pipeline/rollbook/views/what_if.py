"""What another loss or estimator would have made of an iteration: its stored tables, evaluated without a model.

The policy is as each rollout was last seen in training; a rollout that was not trained on counts as not moved. All kept
rollouts are one step. Everything is computed by the code that trains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import ValidationError

from rollbook.components.advantages.moments import any_of_group
from rollbook.components.coefficients import AdaptiveKl, KlCoefficient, start_of
from rollbook.core.component import Model, problems_of
from rollbook.core.errors import ConfigError, RollbookError
from rollbook.core.ragged import IntArray, Ragged
from rollbook.project.plan import load_stage
from rollbook.project.run.store import Store
from rollbook.rl.estimation import (
    advantages_table,
    aligned_logprobs,
    estimation_of,
    has_measured,
    kept_rows,
    pairs_table,
    sampled_rows,
)
from rollbook.rl.training.mismatch import mismatch_metrics
from rollbook.rl.training.rows import TrainingRows, training_rows
from rollbook.rl.training.statistics import counts_rows, row_statistics, step_metrics
from rollbook.rl.training.window import loss_inputs, torch_for_losses, window_of
from rollbook.settings.recipe import Recipe
from rollbook.settings.recipe_sections import ComputeAdvantages
from rollbook.tables.columns import aligned

if TYPE_CHECKING:
    from rollbook.components.losses.base import Loss, LossInputs, LossOutputs

TABLES = (
    "prompts",
    "rollouts",
    "scores",
    "logprobs",
    "advantages",
    "updates",
    "optimizer_steps",
)
Built = TypeVar("Built", bound=Model)
DIFFERENCE = "sampling/sampling_logp_difference/mean"
PARTS = 4
"""Into so many parts of about as many rollouts completions are divided by length."""
TOP_SHARE = 0.1


@dataclass(frozen=True)
class Lengths:
    """The rollouts whose completions are about as long.

    Attributes:
        least, most: tokens of a completion, masked ones included, so that two recipes have the same parts.
        tokens: share of all tokens.
        gradient: share of Σ|∂loss/∂log-prob|.
    """

    least: int
    most: int
    tokens: float
    gradient: float


@dataclass(frozen=True)
class Figures:
    """What a recipe makes of an iteration.

    Attributes:
        advantages: [K] of the kept rollouts, those a token at a time averaged.
        numbers: by name; NaN where there is nothing to measure.
        lengths: the rollouts that one or the other keeps by length, shortest first.
    """

    advantages: NDArray[np.float64]
    numbers: Mapping[str, float]
    lengths: list[Lengths]


@dataclass(frozen=True)
class WhatIf:
    """Two ways to train on the same tables.

    Attributes:
        was, would_be: the iteration's recipe, and the other.
        sign_flips: share of the rollouts that both keep that one pushes up and the other down.
        not_trained: kept rollouts that the update did not compute, so that their policy counts as not moved.
        changed: settings that params.yaml has otherwise now than when the iteration was trained.
    """

    was: Figures
    would_be: Figures
    sign_flips: float
    not_trained: int
    changed: list[str]


def what_if(
    run: Store,
    key: str,
    loss: object = None,
    estimator: object = None,
    recipe: str | None = None,
) -> WhatIf:
    """Evaluates the iteration `key` as it was and as it would be.

    Args:
        run: on disk; `key` is one of its iterations.
        key: whose tables are read.
        loss, estimator: specs as in params.yaml, in place of the recipe's; None: the recipe's.
        recipe: name of another recipe whose objective is taken; default the iteration's own.

    Raises:
        ArtifactError: if a table is missing, or lacks what the estimator reads.
        ConfigError: for a spec that is not valid in this recipe.
        RollbookError: if torch is not installed, or the loss needs log-probs that were not stored.
    """
    own = run.params.recipe_of(key)
    other = _changed(own, own if recipe is None else run.params.recipes[recipe], loss, estimator)
    tables = {kind: run.table(kind, key).checked() for kind in TABLES}
    for kind in ("scores", "advantages", "updates"):
        tables[kind] = aligned(tables[kind], tables["rollouts"], kind)
    if own.update_policy.loss.needs_pairs:
        tables["pairs"] = run.table("pairs", key).checked()
    tables["logprobs"] = aligned_logprobs(tables["logprobs"], tables["rollouts"])
    _refuse_missing(other, tables["logprobs"], key)
    used = run.needed_metrics("compute_advantages", key).get("kl_coef")
    others = {**tables, **_estimated(other, tables, used)}
    kept, would_keep = (each["advantages"]["kept"].to_numpy() for each in (tables, others))
    shown = np.flatnonzero(kept | would_keep)
    signs = [np.sign(each["advantages"]["advantage"].to_numpy()) for each in (tables, others)]
    return WhatIf(
        _figures(own, tables, shown),
        _figures(other, others, shown),
        _share((signs[0] * signs[1] < 0)[kept & would_keep].sum(), (kept & would_keep).sum()),
        int((kept & ~tables["updates"]["trained"].to_numpy()).sum()),
        _settings_changed(run, key),
    )


def _settings_changed(run: Store, key: str) -> list[str]:
    """Places in params.yaml."""
    found: list[str] = []
    for name in ("compute_advantages", "update_policy"):
        if info := run.info(name, key):
            settings = load_stage(name).settings
            now = settings.of(run.params, key).model_dump(mode="json", serialize_as_any=True)
            changed = (field for field in now if now[field] != info.settings.get(field))
            found += map(settings.places().__getitem__, changed)
    return found


def _changed(own: Recipe, other: Recipe, loss: object, estimator: object) -> Recipe:
    """The iteration's recipe with another objective. What made the stored log-probs stays as it was.

    Values are those that were stored: a critic is there if the estimator reads them.

    Raises:
        ConfigError: if the parts do not go together.
    """
    mine = own.update_policy
    stored = ("old_logprobs", "epochs", "optimizer_steps", "precision")
    update = {
        **_fields(other.update_policy),
        **{name: getattr(mine, name) for name in stored},
        **({} if loss is None else {"loss": loss}),
    }
    compute = _fields(other.compute_advantages)
    if estimator is not None:
        compute["estimator"] = estimator
    built = _built(ComputeAdvantages, compute, "compute_advantages")
    critic = update["critic"] or mine.critic
    update["critic"] = critic if built.estimator.needs_values else None
    changed = {**_fields(own), "compute_advantages": built, "update_policy": update}
    return _built(Recipe, changed)


def _built(cls: type[Built], content: Mapping[str, Any], where: str = "") -> Built:
    try:
        return cls.model_validate(content)
    except ValidationError as error:
        raise ConfigError(problems_of(error, where), "what-if") from None


def _fields(model: Any) -> dict[str, Any]:
    return {name: getattr(model, name) for name in type(model).model_fields}


def _refuse_missing(recipe: Recipe, logprobs: pa.Table, key: str) -> None:
    loss = recipe.update_policy.loss
    if recipe.needs_reference and not has_measured(logprobs, "ref_logprobs"):
        if loss.needs_reference and not loss.has_kl:
            raise RollbookError(
                f"{key} has no log-probs of the reference policy, and loss {loss.name} compares with them",
                "ask about an iteration whose recipe has a KL term, or is one of pairs itself",
            )
        if recipe.compute_advantages.needs_reference:
            raise RollbookError(
                f"{key} has no log-probs of the reference policy, and compute_advantages.kl_coef takes a KL to it off "
                "the reward",
                "ask about an iteration whose recipe has a KL term, or take a recipe whose kl_coef is 0",
            )
        raise RollbookError(
            f"{key} has no log-probs of the reference policy, and the objective has a KL term",
            f"set kl_coef: 0, such as --loss '{{name: {loss.name}, kl_coef: 0}}'",
        )
    if recipe.update_policy.critic is not None and not has_measured(logprobs, "values"):
        raise RollbookError(
            f"{key} has no values of a critic, and estimator {recipe.compute_advantages.estimator.name} reads them",
            "ask about an iteration whose recipe has a critic, or take an estimator that needs none, such as group",
        )
    if recipe.rollout_correction is not None and not has_measured(logprobs, "old_logprobs"):
        raise RollbookError(
            f"{key} has no log-probs of the trainer's own, so rollout correction has nothing to compare with",
            "take a recipe with update_policy.rollout_correction: off",
        )
    if recipe.update_policy.top_entropy < 1 and not has_measured(logprobs, "entropies"):
        raise RollbookError(
            f"{key} has no entropies, and the recipe trains on the tokens of the highest only",
            "take a recipe with update_policy.top_entropy: 1",
        )


def _as_used(coefficient: KlCoefficient, used: float | None) -> float:
    """A KL coefficient in this iteration: one that follows a target as the iteration used it, if it used one."""
    if isinstance(coefficient, AdaptiveKl) and used is not None:
        return used
    return start_of(coefficient)


def _estimated(
    recipe: Recipe, tables: Mapping[str, pa.Table], kl_coef: float | None
) -> dict[str, pa.Table]:
    """The tables of advantages and pairs that the recipe would have made.

    Kept are the groups of which anything was kept, and of them the rollouts that the estimator chooses.
    """
    rollouts, compute = tables["rollouts"], recipe.compute_advantages
    found = estimation_of(
        rollouts,
        tables["scores"],
        tables["logprobs"],
        compute,
        {reward.column: reward.weight for reward in recipe.score_rollouts.rewards},
        recipe.generate_rollouts.group_size,
        _as_used(compute.kl_coef, kl_coef),
    )
    was = np.asarray(tables["advantages"]["kept"].to_numpy())[sampled_rows(rollouts)]
    kept = any_of_group(was, found.given.groups) & kept_rows(found.outputs)
    if not kept.any():
        raise RollbookError(
            f"estimator {compute.estimator.name} chooses none of the rollouts that the update was given"
        )
    return {
        "advantages": advantages_table(rollouts, found.groups, found.outputs, kept),
        "pairs": pairs_table(rollouts, found, kept),
    }


def _figures(recipe: Recipe, tables: Mapping[str, pa.Table], shown: IntArray) -> Figures:
    """All kept rollouts as one step, in float64; `shown` are those to tell apart by length."""
    torch = torch_for_losses()
    update = recipe.update_policy
    digest = tables["rollouts"]["policy_digest"][0].as_py()
    rows = training_rows(tables, update, digest, recipe.rollout_correction)
    used = tables["optimizer_steps"]["kl_coef"][0].as_py()
    loss = update.loss.with_coefficients(_as_used(update.loss.kl_coef, used), 0.0)
    index = np.flatnonzero(rows.kept)
    policy = _policy_logprobs(rows, tables["updates"]).rows(index)
    inputs = loss_inputs(
        rows,
        index,
        window_of(rows, index, loss, update.top_entropy),
        torch.from_numpy(policy.padded(0.0)).requires_grad_(),
        None,
        recipe.generate_rollouts.max_completion_tokens,
    )
    outputs = loss(inputs)
    (gradient,) = torch.autograd.grad(outputs.loss, inputs.policy_logprobs)
    weights = gradient.abs().where(inputs.loss_mask, 0.0).numpy()
    of_row = np.zeros(len(rows))
    of_row[index] = weights.sum(-1)
    return Figures(
        rows.advantages[rows.kept],
        _numbers(rows, tables["advantages"], loss, inputs, outputs, weights),
        _by_length(rows.completions.lengths[shown], of_row[shown]),
    )


def _policy_logprobs(rows: TrainingRows, updates: pa.Table) -> Ragged:
    """As last seen; of rollouts that were not computed, those of the policy before the update."""
    before = rows.sampling_logprobs if rows.old_logprobs is None else rows.old_logprobs
    values = before.values.astype(np.float64)
    trained = np.flatnonzero(updates["trained"].to_numpy())
    seen = Ragged.from_column(updates["policy_logprobs"].take(trained))
    values[before.places(trained)] = seen.values
    return Ragged(values, before.lengths)


def _numbers(
    rows: TrainingRows,
    advantages: pa.Table,
    loss: Loss,
    inputs: LossInputs,
    outputs: LossOutputs,
    weights: NDArray[np.float64],
) -> dict[str, float]:
    per_row = counts_rows(loss, rows.token_advantages is not None)
    metrics = step_metrics(row_statistics(inputs, outputs), per_row)
    ratios = outputs.ratio[inputs.loss_mask].numpy()
    informative = advantages["informative"].to_numpy() & rows.kept
    ranked = np.sort(weights[inputs.loss_mask.numpy()])[::-1]
    top = ranked[: max(1, round(TOP_SHARE * len(ranked)))]
    old, sampling = rows.old_logprobs, rows.sampling_logprobs
    mismatch = (
        {} if old is None or old is sampling else mismatch_metrics(old, sampling, rows.loss_mask)
    )
    return {
        "kept groups": rows.kept_groups,
        "informative groups": len(np.unique(rows.groups[informative])),
        "mean |advantage|": float(np.abs(rows.advantages[rows.kept]).mean()),
        "ratio, mean": metrics["ratio/mean"],
        "ratio, largest": metrics["ratio/max"],
        "clipped low": metrics["clip_ratio/low_mean"],
        "clipped high": metrics["clip_ratio/high_mean"],
        "effective sample size": _effective(ratios),
        "trainer − engine, mean |nats|": mismatch.get(DIFFERENCE, float("nan")),
        f"gradient on the top {TOP_SHARE:.0%} of tokens": _share(top.sum(), ranked.sum()),
        "loss": float(outputs.loss.detach()),
        "KL": metrics.get("kl", float("nan")),
    }


def _effective(ratios: NDArray[np.float64]) -> float:
    """(Σw)² / (N Σw²): the share of the tokens that would say as much if all weighed the same."""
    return _share(ratios.sum() ** 2, len(ratios) * np.square(ratios).sum())


def _by_length(tokens: NDArray[np.int64], weights: NDArray[np.float64]) -> list[Lengths]:
    """Rollouts of equal length stay together: where many are equally long there are fewer than PARTS parts."""
    edges = np.unique(np.quantile(tokens, np.arange(1, PARTS) / PARTS, method="lower"))
    part_of = np.searchsorted(edges, tokens)
    parts = [np.flatnonzero(part_of == part) for part in np.unique(part_of)]
    return [
        Lengths(
            int(tokens[part].min()),
            int(tokens[part].max()),
            _share(tokens[part].sum(), tokens.sum()),
            _share(weights[part].sum(), weights.sum()),
        )
        for part in parts
    ]


def _share(part: Any, whole: Any) -> float:
    return float(part) / float(whole) if whole else float("nan")
