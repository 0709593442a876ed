"""Rollout correction against loops written from the formulas, and laws that no settings break."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.core.ragged import Ragged
from rollbook.rl.training.mismatch import mismatch_metrics
from rollbook.rl.training.rollout_correction import Correction, correction
from rollbook.settings.recipe_correction import Rejection, RolloutCorrection

LOGPROB = st.integers(-192, 0).map(lambda n: n / 64)
EXTREME = st.sampled_from([math.nan, -math.inf, -1e3, 0.0])
TOKEN = st.tuples(LOGPROB, LOGPROB, st.booleans())
WILD = st.tuples(LOGPROB | st.sampled_from([-1e3, 0.0]), LOGPROB | EXTREME, st.booleans())
WEIGHTS = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
STATISTICS = Rejection.model_fields["statistic"].annotation.__args__  # type: ignore[union-attr]

Row = list[tuple[float, float, bool]]
"""(old, sampling, trained on) of each token."""


def rows_of(token: Any) -> Any:
    return st.lists(st.lists(token, max_size=6), max_size=6)


REJECTIONS = st.builds(
    lambda statistic, high, low: Rejection(
        statistic=statistic, high=high, low=low if statistic.endswith("k1") else None
    ),
    statistic=st.sampled_from(STATISTICS),
    high=st.sampled_from([1.1, 1.3, 2.0, 50.0]),
    low=st.sampled_from([None, 0.4, 1.0]),
)
SETTINGS = st.builds(
    RolloutCorrection,
    weights=st.sampled_from(WEIGHTS),
    max=st.sampled_from([1.0, 1.5, 3.0]),
    min=st.sampled_from([None, 0.5, 0.9]),
    normalize=st.booleans(),
    reject=st.lists(REJECTIONS, max_size=2),
)


def corrected(rows: list[Row], settings: RolloutCorrection) -> Correction:
    return correction(*lists_of(rows), settings)


def lists_of(rows: list[Row]) -> tuple[Ragged, Ragged, Ragged]:
    return (
        Ragged.of([[token[0] for token in row] for row in rows]),
        Ragged.of([[token[1] for token in row] for row in rows]),
        Ragged.of([[token[2] for token in row] for row in rows], bool),
    )


def naive_weights(rows: list[Row], settings: RolloutCorrection) -> list[float]:
    low, high = settings.min or 0.0, settings.max or math.inf

    def bounded(log_ratio: float) -> float:
        ratio = math.exp(log_ratio)
        if str(settings.weights).endswith("mask"):
            return ratio if low <= ratio <= high else 0.0
        return min(max(ratio, low), high)

    found, normalised = [], []
    for row in rows:
        differences = [old - sampling for old, sampling, trained in row if trained]
        of_row = bounded(math.fsum(differences))
        by_row = str(settings.weights).startswith("sequence")
        if differences:
            normalised += [of_row] if by_row else map(bounded, differences)
        for old, sampling, trained in row:
            weight = of_row if by_row else bounded(old - sampling)
            found.append(weight if trained else math.nan)
    center = math.fsum(normalised) / len(normalised) if settings.normalize and normalised else 1.0
    return [1.0 if math.isnan(weight) else weight / (center or 1.0) for weight in found]


def naive_kept(rows: list[Row], settings: Rejection) -> list[bool]:
    scope, _, kind = settings.statistic.rpartition("_")
    low, high = -math.inf, settings.high
    if kind == "k1":
        low, high = math.log(settings.low or 1 / high), math.log(high)

    def estimate(log_ratio: float) -> float:
        if kind == "k3":
            return math.expm1(log_ratio) - log_ratio
        return -log_ratio if kind == "k1" else log_ratio**2 / 2

    kept = []
    for row in rows:
        values = [estimate(old - sampling) if trained else 0.0 for old, sampling, trained in row]
        of_row = [value for value, token in zip(values, row, strict=True) if token[2]] or [0.0]
        if scope != "token":
            whole = {
                "sequence_sum": math.fsum(of_row),
                "sequence_mean": math.fsum(of_row) / len(of_row),
                "sequence_max": max(of_row),
            }[scope]
            values = [whole] * len(row)
        # Rounding may put a value that is on a bound on either side of it; NaN stands for "do not compare".
        kept += [
            trained and low <= value <= high
            if min(abs(value - low), abs(value - high)) > 1e-6
            else math.nan
            for value, (_, _, trained) in zip(values, row, strict=True)
        ]
    return kept


@given(rows_of(TOKEN), SETTINGS)
def test_weights_are_those_of_the_formula(rows: list[Row], settings: RolloutCorrection) -> None:
    found = corrected(rows, settings).weights.values
    expected = naive_weights(rows, settings)
    assert found.tolist() == pytest.approx(expected, rel=1e-9)


@given(rows_of(TOKEN), REJECTIONS)
def test_rejection_is_that_of_the_formula(rows: list[Row], rejection: Rejection) -> None:
    found = corrected(rows, RolloutCorrection(weights=None, reject=[rejection]))
    assert (found.weights.values == 1).all()
    for got, expected in zip(found.kept.values, naive_kept(rows, rejection), strict=True):
        assert math.isnan(expected) or got == expected


@given(rows_of(WILD), SETTINGS)
def test_everything_stays_finite_and_within_bounds(
    rows: list[Row], settings: RolloutCorrection
) -> None:
    found = corrected(rows, settings)
    mask = lists_of(rows)[2]
    weights, trained = found.weights.values, mask.values
    assert np.isfinite(weights).all()
    assert (weights[~trained] == 1).all()
    assert not found.kept.values[~trained].any()
    assert all(math.isfinite(value) for value in found.metrics.values())
    if not settings.normalize:
        inside = (weights >= (settings.min or 0)) & (weights <= (settings.max or math.inf))
        assert (inside | ((weights == 0) & str(settings.weights).endswith("mask"))).all()
    if trained.any():
        share = found.metrics["rollout_corr/rollout_is_eff_sample_size"]
        assert 0 < share <= 1 + 1e-12 if weights[trained].any() else share == 0


@given(rows_of(WILD), SETTINGS, st.randoms())
def test_the_order_of_rows_does_not_matter(
    rows: list[Row], settings: RolloutCorrection, random: Any
) -> None:
    order = list(range(len(rows)))
    random.shuffle(order)
    straight = corrected(rows, settings)
    shuffled = corrected([rows[place] for place in order], settings)
    index = np.array(order, dtype=np.int64)
    assert shuffled.kept.values.tolist() == straight.kept.rows(index).values.tolist()
    moved = straight.weights.rows(index).values
    assert shuffled.weights.values.tolist() == pytest.approx(moved.tolist(), rel=1e-12)
    assert shuffled.metrics == pytest.approx(straight.metrics, rel=1e-6, abs=1e-6)


@given(rows_of(WILD), SETTINGS)
def test_masked_values_do_not_matter(rows: list[Row], settings: RolloutCorrection) -> None:
    other = [[token if token[2] else (-7.0, math.nan, False) for token in row] for row in rows]
    straight, changed = corrected(rows, settings), corrected(other, settings)
    assert changed.weights.values.tolist() == straight.weights.values.tolist()
    assert changed.kept.values.tolist() == straight.kept.values.tolist()
    assert changed.metrics == straight.metrics


@given(rows_of(TOKEN), SETTINGS)
def test_an_engine_that_agrees_is_left_alone(rows: list[Row], settings: RolloutCorrection) -> None:
    same = [[(old, old, trained) for old, _, trained in row] for row in rows]
    found = corrected(same, settings)
    assert (found.weights.values == 1).all()
    assert found.kept.values.tolist() == lists_of(same)[2].values.tolist()
    for name, value in mismatch_metrics(*lists_of(same)).items():
        wanted = 1.0 if "importance_sampling_ratio" in name else 0.0
        assert "ppl" in name or value == pytest.approx(wanted, abs=1e-6)
    share = found.metrics.get("rollout_corr/rollout_is_eff_sample_size", 1.0)
    assert share == pytest.approx(1)
