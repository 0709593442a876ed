"""Weights and rejection on numbers that can be followed by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from rollbook.core.ragged import Ragged
from rollbook.rl.training.rollout_correction import Correction, correction
from rollbook.settings.recipe_correction import RolloutCorrection

LN2 = math.log(2)
RATIOS = [[2.0, 0.5, 4.0], [0.25, 8.0], [1.0]]
"""exp(old − sampling); products 4, 2 and 1."""


def corrected(
    ratios: list[list[float]], masks: list[list[bool]] | None = None, **settings: Any
) -> Correction:
    old = Ragged.of([[-1.0] * len(row) for row in ratios])
    sampling = Ragged.of([[-1.0 - math.log(ratio) for ratio in row] for row in ratios])
    masks = masks or [[True] * len(row) for row in ratios]
    return correction(
        old, sampling, Ragged.of(masks, bool), RolloutCorrection.model_validate(settings)
    )


def weights(ratios: list[list[float]] = RATIOS, **settings: Any) -> Any:
    return pytest.approx(corrected(ratios, **settings).weights.values.tolist())


def rejected(statistic: str, high: float, low: float | None = None, **options: Any) -> list[bool]:
    reject = [{"statistic": statistic, "low": low, "high": high}]
    found = corrected(options.pop("ratios", RATIOS), weights=None, reject=reject, **options)
    return [not kept for kept in found.kept.values.tolist()]


def test_token_modes_look_at_each_token() -> None:
    assert weights(weights="token_truncate", max=2.0) == [2, 0.5, 2, 0.25, 2, 1]
    assert weights(weights="token_truncate", max=2.0, min=0.5) == [2, 0.5, 2, 0.5, 2, 1]
    assert weights(weights="token_mask", max=3.0, min=0.4) == [2, 0.5, 0, 0, 0, 1]
    assert weights(weights="token_mask", max=None, min=0.4) == [2, 0.5, 4, 0, 8, 1]


def test_sequence_modes_look_at_the_product() -> None:
    assert weights(weights="sequence_truncate", max=3.0) == [3, 3, 3, 2, 2, 1]
    assert weights(weights="sequence_mask", max=3.0) == [0, 0, 0, 2, 2, 1]
    assert weights(weights="sequence_mask", max=9.0, min=1.5) == [4, 4, 4, 2, 2, 0]


def test_bounds_are_inclusive() -> None:
    exact = [[1.0, 1.0], [1.0]]
    assert weights(exact, weights="token_mask", max=1.0) == [1, 1, 1]
    assert weights(exact, weights="sequence_mask", max=2.0, min=1.0) == [1, 1, 1]


def test_masked_tokens_take_no_part() -> None:
    masks = [[True, False, True], [False, False], [True]]
    found = corrected(RATIOS, masks, weights="sequence_truncate", max=9.0)
    assert found.weights.values.tolist() == pytest.approx([8, 1, 8, 1, 1, 1])
    assert found.kept.values.tolist() == [True, False, True, False, False, True]


def test_an_unknown_log_prob_is_no_difference() -> None:
    old, mask = Ragged.of([[-1.0, -2.0], [-3.0]]), Ragged.of([[True, True], [True]], bool)
    sampling = Ragged.of([[-1.0 - LN2, math.nan], [math.nan]])
    settings = RolloutCorrection(weights="sequence_truncate", max=9.0)
    found = correction(old, sampling, mask, settings)
    assert found.weights.values.tolist() == pytest.approx([2, 2, 1])
    difference = "sampling/sampling_logp_difference"
    assert found.metrics[f"{difference}/mean"] == pytest.approx(LN2)  # not LN2 / 3
    assert found.metrics["rollout_corr/kl"] == pytest.approx(-LN2)


def test_normalised_weights_have_mean_1_over_tokens_or_rows() -> None:
    tokens = corrected(RATIOS, weights="token_truncate", max=2.0, normalize=True)
    assert tokens.weights.values.mean() == pytest.approx(1)
    assert tokens.metrics["rollout_corr/rollout_is_batch_norm_factor"] == pytest.approx(7.75 / 6)
    masks = [[True] * 3, [True, False], [False]]
    rows = corrected(RATIOS, masks, weights="sequence_truncate", max=3.0, normalize=True)
    center = (3 + 0.25) / 2  # the row without tokens has no weight to count
    assert rows.weights.values.tolist() == pytest.approx([3 / center] * 3 + [0.25 / center, 1, 1])


def test_weights_that_are_all_0_stay_0() -> None:
    found = corrected([[4.0], [8.0]], weights="token_mask", max=2.0, normalize=True)
    assert found.weights.values.tolist() == [0, 0]
    assert found.metrics["rollout_corr/rollout_is_eff_sample_size"] == 0


def test_rejection_of_tokens() -> None:
    assert rejected("token_k1", 3.0) == [False, False, True, True, True, False]
    assert rejected("token_k2", 0.5) == [False, False, True, True, True, False]  # ½ ln² ratio
    assert rejected("token_k3", 0.5) == [False, False, True, True, True, False]
    assert rejected("token_k3", 1.0) == [False, False, True, False, True, False]  # k3 of ¼ is 0.64


def test_k1_bounds_are_on_engine_over_trainer() -> None:
    assert rejected("token_k1", 10.0, low=0.9) == [True, False, True, False, True, False]
    assert rejected("token_k1", 1.1, low=0.01) == [False, True, False, True, False, False]


def test_rejection_of_rollouts() -> None:
    assert rejected("sequence_sum_k1", 3.0) == [True] * 3 + [False] * 3
    assert rejected("sequence_mean_k1", 1.5) == [True] * 3 + [False] * 3  # geometric: 1.59, 1.41
    k2 = [(1 + 1 + 4) / 2 * LN2**2, (4 + 9) / 2 * LN2**2]
    assert k2 == pytest.approx([1.44, 3.12], abs=0.01)
    assert rejected("sequence_sum_k2", 2.0) == [False] * 3 + [True] * 2 + [False]
    assert rejected("sequence_mean_k2", 1.0) == [False] * 3 + [True] * 2 + [False]
    assert rejected("sequence_max_k2", 1.0) == [False] * 3 + [True] * 2 + [False]  # 0.96, 2.16
    assert rejected("sequence_max_k3", 2.0) == [False] * 3 + [True] * 2 + [False]  # 1.61, 4.92
    assert rejected("sequence_sum_k3", 2.0) == [True] * 5 + [False]  # 2.11, 5.56
    assert rejected("sequence_mean_k3", 1.0) == [False] * 3 + [True] * 2 + [False]


def test_a_masked_token_can_neither_cause_nor_undo_a_rejection() -> None:
    masks = [[True, True, False], [True, True], [False]]
    found = rejected("sequence_max_k2", 1.0, masks=masks)
    assert found == [False, False, True, True, True, True]


def test_rejection_and_weights_do_not_see_each_other() -> None:
    reject = [{"statistic": "token_k1", "high": 3.0}]
    found = corrected(RATIOS, weights="sequence_truncate", max=3.0, reject=reject)
    assert found.weights.values.tolist() == pytest.approx([3, 3, 3, 2, 2, 1])
    assert found.kept.values.tolist() == [True, True, False, False, False, True]
    assert found.metrics["rollout_corr/rollout_rs_masked_fraction"] == pytest.approx(0.5)
    assert found.metrics["rollout_corr/rollout_rs_seq_masked_fraction"] == pytest.approx(2 / 3)


def test_effective_sample_size_by_hand() -> None:
    found = corrected([[2.0, 1.0], [1.0]], weights="token_truncate", max=3.0)
    assert found.metrics["rollout_corr/rollout_is_eff_sample_size"] == pytest.approx(16 / 18)


def test_rows_without_tokens_count_as_0_in_metrics_by_row_as_in_verl() -> None:
    masks = [[True] * 3, [True] * 2, [False]]
    found = corrected(RATIOS, masks, weights="sequence_truncate", max=3.0).metrics
    assert found["rollout_corr/rollout_is_seq_mean"] == pytest.approx((3 + 2 + 0) / 3)
    assert found["rollout_corr/rollout_is_seq_min"] == 0
    assert found["sampling/importance_sampling_ratio/mean"] == pytest.approx((3 + 2 + 1) / 3)  # TRL


def test_differences_are_clamped_to_20_nats() -> None:
    far = [[math.exp(30), 1.0]]
    assert weights(far, weights="token_truncate", max=1e12) == [math.exp(20), 1]
    assert rejected("token_k2", 201.0, ratios=far) == [False, False]  # 20² / 2
    assert rejected("token_k2", 199.0, ratios=far) == [True, False]


def test_nothing_to_train_on() -> None:
    found = corrected([[2.0, 4.0], []], [[False, False], []], weights="token_mask", max=1.0)
    assert found.weights.values.tolist() == [1, 1]
    assert found.kept.values.tolist() == [False, False]
    assert found.metrics == {}
    assert (
        correction(
            *[Ragged.of([])] * 2, Ragged.of([], bool), RolloutCorrection()
        ).weights.values.tolist()
        == []
    )


def test_values_are_not_changed_in_place() -> None:
    mask = Ragged.of([[True, True]], bool)
    old, sampling = Ragged.of([[-1.0, -9.0]]), Ragged.of([[-1.0, -1.0]])
    reject = [{"statistic": "token_k1", "high": 2.0}]
    settings = RolloutCorrection.model_validate({"weights": "token_mask", "reject": reject})
    found = correction(old, sampling, mask, settings)
    assert found.kept.values.tolist() == [True, False]
    assert mask.values.tolist() == [True, True]
    assert np.array_equal(old.values, [-1.0, -9.0])
