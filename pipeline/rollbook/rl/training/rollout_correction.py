"""Rollout correction: weights and rejection for rollouts of an engine whose log-probs are not the trainer's.

    d = old − sampling log-prob of a trained-on token, 0 where the engine gave none
    token_*      c_t = exp(d_t)            sequence_*   c = exp(Σ d), the product over the rollout
    *_truncate   clamped to [min, max]     *_mask       0 outside [min, max], bounds included
    rejection    of tokens, or of rollouts by the sum, mean or max of k1 = −d, k2 = d²/2 or k3 = e^d − 1 − d

Weights multiply the policy term. A token of weight 0 stays in every denominator; a rejected one leaves the loss mask.

TRL 1.16 `vllm_importance_sampling_*`; verl `rollout_is`, `rollout_rs`. token_truncate is TIS (fengyao.notion.site/
off-policy-rl), a mask with both bounds IcePop. GRPO has none of it: it takes engine and trainer to be the same.
Exponents are clamped to ±20, as in verl.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rollbook.core.ragged import Ragged
from rollbook.rl.training.correction_metrics import (
    BoolArray,
    Statistic,
    rejected_metrics,
    rejection_metrics,
    weight_metrics,
)
from rollbook.rl.training.mismatch import (
    LIMIT,
    FloatArray,
    exp,
    k3,
    mean,
    mismatch_metrics,
    named,
    only,
    row_means,
)

if TYPE_CHECKING:
    from rollbook.settings.recipe_correction import Rejection, RolloutCorrection


@dataclass(frozen=True)
class Correction:
    """What is done about the difference.

    Attributes:
        weights: per completion token, constant; 1 where masked.
        kept: per completion token, the loss mask without rejected tokens.
        metrics: all of TRL's and verl's by name; `rollbook.rl.training.mismatch.reported` picks those worth showing.
    """

    weights: Ragged
    kept: Ragged
    metrics: dict[str, float]


def correction(
    old: Ragged, sampling: Ragged, loss_mask: Ragged, settings: RolloutCorrection
) -> Correction:
    """Weights and rejection of an iteration's rollouts.

    Args:
        old: per completion token, log-probs of the policy before the update, nats.
        sampling: as the engine reported them; NaN = unknown, counts as no difference.
        loss_mask: True = trained on.
        settings: which weights, bounds and rejection.
    """
    trained = loss_mask.values
    weights, kept = np.ones(len(trained)), trained.copy()
    metrics = mismatch_metrics(old, sampling, loss_mask)
    if trained.any():
        differences = log_ratios(old, sampling, loss_mask)
        if settings.weights is not None:
            weights[trained], found = _weights(differences, settings)
            metrics |= found
        if settings.reject:
            kept[trained], found = kept_by(differences, settings.reject)
            metrics |= found
    lengths = loss_mask.lengths
    return Correction(Ragged(weights, lengths), Ragged(kept, lengths), metrics)


def log_ratios(old: Ragged, sampling: Ragged, loss_mask: Ragged) -> Ragged:
    """log p_old − log p_sampling of the trained-on tokens alone; finite, 0 where unknown.

    Arguments as for `correction`.
    """
    old, sampling = only(old, loss_mask), only(sampling, loss_mask)
    return Ragged(np.nan_to_num(old.values - sampling.values, nan=0.0), old.lengths)


def kept_by(
    differences: Ragged, rejections: Sequence[Rejection]
) -> tuple[BoolArray, dict[str, float]]:
    """Which trained-on tokens pass all rejections, [N], and metrics.

    Args:
        differences: `log_ratios`, with at least one token.
        rejections: each looks at all tokens, whatever the others reject.
    """
    kept, metrics = np.ones(len(differences.values), bool), dict[str, float]()
    for rejection in rejections:
        passed, found = _passed(differences, rejection)
        kept &= passed
        metrics |= found
    return kept, metrics | rejected_metrics(kept, differences)


def _weights(
    differences: Ragged, settings: RolloutCorrection
) -> tuple[FloatArray, dict[str, float]]:
    """[N] weights of the trained-on tokens, and metrics of the weights before they are normalised."""
    level, _, outside_bounds = str(settings.weights).partition("_")
    by_row = level == "sequence"
    low, high = settings.min or 0.0, settings.max or math.inf
    raw = Statistic(exp(differences.sums() if by_row else differences.values), by_row, differences)
    outside = Statistic((raw.values < low) | (raw.values > high), by_row, differences)
    masked = np.where(outside.values, 0.0, raw.values)
    truncated = np.clip(raw.values, low, high)
    bounded = Statistic(masked if outside_bounds == "mask" else truncated, by_row, differences)
    metrics = weight_metrics(raw, bounded, settings.min, high)
    if outside_bounds == "mask":
        metrics |= named({"rollout_is_oob_ratio": mean(outside.tokens)})
    if not settings.normalize:
        return bounded.tokens, metrics
    has_tokens = differences.lengths > 0
    center = float((bounded.values[has_tokens] if by_row else bounded.values).mean()) or 1.0
    return bounded.tokens / center, metrics | named({"rollout_is_batch_norm_factor": center})


def _passed(differences: Ragged, settings: Rejection) -> tuple[BoolArray, dict[str, float]]:
    """[N] which trained-on tokens pass one rejection, and its metrics."""
    scope, _, kind = settings.statistic.rpartition("_")
    d = np.clip(differences.values, -LIMIT, LIMIT)
    estimates = Ragged({"k1": -d, "k2": d**2 / 2, "k3": k3(d)}[kind], differences.lengths)
    by_row = scope != "token"
    values = OVER_ROWS[scope](estimates) if by_row else estimates.values
    low, high = -math.inf, settings.high
    if kind == "k1":
        low, high = math.log(settings.low or 1 / high), math.log(high)
    statistic = Statistic(values, by_row, differences)
    passed = Statistic((values >= low) & (values <= high), by_row, differences).tokens
    name = settings.statistic.replace("sequence", "seq")
    return passed, rejection_metrics(name, statistic, passed, low, high)


def _row_maxima(lists: Ragged) -> FloatArray:
    """[B] largest item of each list; −∞ without items."""
    largest = np.full(len(lists.lengths), -np.inf)
    np.maximum.at(largest, lists.row_of, lists.values)
    return largest


OVER_ROWS: Mapping[str, Callable[[Ragged], FloatArray]] = {
    "sequence_sum": Ragged.sums,
    "sequence_mean": row_means,
    "sequence_max": _row_maxima,
}
