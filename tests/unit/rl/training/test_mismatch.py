"""Mismatch metrics on numbers that can be followed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rollbook.core.ragged import Ragged
from rollbook.rl.training.mismatch import REPORTED, mismatch_metrics, reported

OLD = Ragged.of([[-1.0, -3.0, -9.0], [-2.0]])
SAMPLING = Ragged.of([[-1.5, -2.0, -0.1], [-2.0]])
MASK = Ragged.of([[True, True, False], [True]], bool)


def test_definitions() -> None:
    found = mismatch_metrics(OLD, SAMPLING, MASK)
    d = np.array([0.5, -1.0, 0.0])
    expected = {
        "sampling/sampling_logp_difference/mean": 0.5,
        "sampling/sampling_logp_difference/max": 1.0,
        "sampling/importance_sampling_ratio/min": math.exp(-1.0),
        "sampling/importance_sampling_ratio/mean": (math.exp(0.5) + math.exp(-1.0) + 1) / 3,
        "sampling/importance_sampling_ratio/max": math.exp(0.5),
        "rollout_corr/kl": 0.5 / 3,  # of engine to trainer: sampling − old
        "rollout_corr/k3_kl": (np.exp(d) - d - 1).mean(),
        "rollout_corr/chi2_token": np.exp(2 * d).mean() - 1,
        "rollout_corr/chi2_seq": (math.exp(2 * -0.5) + 1) / 2 - 1,
        "rollout_corr/training_log_ppl": (2.0 + 2.0) / 2,
        "rollout_corr/rollout_log_ppl": (1.75 + 2.0) / 2,
        "rollout_corr/training_ppl": math.exp(2.0),
        "rollout_corr/rollout_ppl": (math.exp(1.75) + math.exp(2.0)) / 2,
        "rollout_corr/log_ppl_diff": 0.25 / 2,
        "rollout_corr/log_ppl_abs_diff": 0.25 / 2,
        "rollout_corr/log_ppl_diff_max": 0.25,
        "rollout_corr/log_ppl_diff_min": 0.0,
        "rollout_corr/ppl_ratio": (math.exp(0.25) + 1) / 2,
    }
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-7)


def test_unknown_log_probs_are_left_out() -> None:
    sampling = Ragged.of([[-1.5, math.nan, -0.1], [-2.0]])
    found = mismatch_metrics(OLD, sampling, MASK)
    assert found["sampling/sampling_logp_difference/mean"] == pytest.approx(0.25)
    assert found["rollout_corr/training_log_ppl"] == pytest.approx((1.0 + 2.0) / 2)


def test_nothing_known() -> None:
    unknown = Ragged.of([[math.nan] * 3, [math.nan]])
    assert mismatch_metrics(OLD, unknown, MASK) == {}
    assert mismatch_metrics(OLD, SAMPLING, Ragged(np.zeros(4, bool), MASK.lengths)) == {}


def test_infinite_log_probs_stay_finite() -> None:
    old = Ragged.of([[-math.inf, -3.0, -9.0], [-2.0]])
    found = mismatch_metrics(old, SAMPLING, MASK)
    assert all(math.isfinite(value) for value in found.values())
    assert found["sampling/sampling_logp_difference/max"] > 1e5


def test_reported_metrics_are_a_choice() -> None:
    found = reported(mismatch_metrics(OLD, SAMPLING, MASK))
    assert set(found) < set(REPORTED)
    assert {"rollout_corr/kl", "sampling/sampling_logp_difference/max"} <= set(found)
    assert "rollout_corr/ppl_ratio" not in found
