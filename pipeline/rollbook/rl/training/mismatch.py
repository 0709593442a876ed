"""How far the engine that sampled is from the trainer, from what both say about the sampled tokens.

    d = old − sampling log-prob, nats, of a trained-on token;  ρ = exp d

`sampling/*` are TRL 1.16's names and definitions, `rollout_corr/*` verl's (snapshot of August 2026), which adds 1e-8 to
the number of tokens in a mean and counts rows without tokens as 0. Tokens whose log-prob the engine did not give (NaN)
are left out: as 0 they would hide part of the difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.core.ragged import Ragged

FloatArray = NDArray[np.float64]

EPS = 1e-8
"""Added to the number of tokens in a mean."""
LIMIT = 20.0
"""Exponents are clamped to ± this, so that nothing overflows."""
INFINITE = 1e6
"""Stands for an infinite log-prob: finite, and far beyond LIMIT."""
REPORTED = (
    "sampling/sampling_logp_difference/mean",
    "sampling/sampling_logp_difference/max",
    "sampling/importance_sampling_ratio/min",
    "sampling/importance_sampling_ratio/mean",
    "sampling/importance_sampling_ratio/max",
    "rollout_corr/kl",
    "rollout_corr/k3_kl",
    "rollout_corr/log_ppl_diff",
    "rollout_corr/chi2_token",
    "rollout_corr/chi2_seq",
    "rollout_corr/rollout_is_eff_sample_size",
    "rollout_corr/rollout_rs_masked_fraction",
)
"""The metrics worth a column; the others say the same in other words and are there to compare with verl."""


def reported(metrics: Mapping[str, float]) -> dict[str, float]:
    """Those of `metrics` that stages report."""
    return {name: metrics[name] for name in REPORTED if name in metrics}


def mismatch_metrics(old: Ragged, sampling: Ragged, loss_mask: Ragged) -> dict[str, float]:
    """Difference, KL, perplexities and χ² of trainer and engine.

    Args:
        old: per completion token, log-probs of the policy before the update, nats.
        sampling: as the engine reported them; NaN = unknown.
        loss_mask: True = trained on; other tokens do not count.

    Returns:
        Metrics by their full names; ratios are clamped to e^±20. Empty where no trained-on token has both log-probs.
    """
    known = Ragged(loss_mask.values & ~np.isnan(old.values - sampling.values), old.lengths)
    if not known.values.any():
        return {}
    old, sampling = only(old, known), only(sampling, known)
    d = Ragged(old.values - sampling.values, old.lengths)
    log_ppl, rollout_log_ppl = -row_means(old), -row_means(sampling)
    gap, ratios = log_ppl - rollout_log_ppl, exp(d.values)
    verl = {
        "kl": mean(-d.values),
        "k3_kl": mean(k3(d.values)),
        "chi2_token": mean(ratios**2) - 1,
        "chi2_seq": (exp(d.sums()) ** 2).mean() - 1,
        "training_ppl": exp(log_ppl).mean(),
        "training_log_ppl": log_ppl.mean(),
        "rollout_ppl": exp(rollout_log_ppl).mean(),
        "rollout_log_ppl": rollout_log_ppl.mean(),
        "log_ppl_diff": gap.mean(),
        "log_ppl_abs_diff": np.abs(gap).mean(),
        "log_ppl_diff_max": gap.max(),
        "log_ppl_diff_min": gap.min(),
        "ppl_ratio": exp(gap).mean(),
    }
    return {
        "sampling/sampling_logp_difference/mean": float(np.abs(d.values).mean()),
        "sampling/sampling_logp_difference/max": float(np.abs(d.values).max()),
        # Of TRL's weights before their bounds; rollout correction puts those of its own weights in their place.
        "sampling/importance_sampling_ratio/min": float(ratios.min()),
        "sampling/importance_sampling_ratio/mean": float(ratios.mean()),
        "sampling/importance_sampling_ratio/max": float(ratios.max()),
        **named(verl),
    }


def named(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The same under verl's prefix, as plain numbers."""
    return {f"rollout_corr/{name}": float(value) for name, value in metrics.items()}


def only(lists: Ragged, mask: Ragged) -> Ragged:
    """The items where `mask` is True, in float64, infinities made finite."""
    items = np.nan_to_num(
        lists.values[mask.values].astype(np.float64), nan=np.nan, posinf=INFINITE, neginf=-INFINITE
    )
    return Ragged(items, mask.counts())


def exp(log_ratios: FloatArray) -> FloatArray:
    """Ratios of clamped logarithms."""
    return np.exp(np.clip(log_ratios, -LIMIT, LIMIT))


def k3(log_ratios: FloatArray) -> FloatArray:
    """ρ − 1 − log ρ of clamped logarithms: a KL estimate that is never negative."""
    clamped = np.clip(log_ratios, -LIMIT, LIMIT)
    return np.exp(clamped) - 1 - clamped


def mean(values: NDArray[Any]) -> float:
    """Mean over tokens."""
    return float(values.sum() / (len(values) + EPS))


def row_means(lists: Ragged) -> FloatArray:
    """[B] mean of each list; 0 without items."""
    return lists.sums() / (lists.lengths + EPS)
