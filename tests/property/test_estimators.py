"""Every estimator against loops written from its formula, one row and token at a time, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.components.advantages.base import (
    AdvantageEstimator,
    AdvantageInputs,
    AdvantageOutputs,
)
from rollbook.core.registry import build, menu
from tests.builders import advantage_inputs

EPS = 1e-4


@dataclass(frozen=True)
class Row:
    """A rollout; numbers are on a grid of 1/64, so that sums are exact and "equal" has one meaning."""

    parts: tuple[float | None, float | None]
    group: int
    mask: list[int]
    values: list[float]
    steps: list[tuple[int, float]]

    @property
    def scorable(self) -> bool:
        return self.parts != (None, None)

    @property
    def reward(self) -> float:
        return sum(part for part in self.parts if part is not None)

    @property
    def length(self) -> int:
        return sum(self.mask)


NUMBER = st.integers(-256, 256).map(lambda n: n / 64)
PART = st.one_of(st.none(), NUMBER, st.sampled_from([0.0, 1.0]))


@st.composite
def _rows(draw: st.DrawFn, part: st.SearchStrategy[float | None] = PART) -> Row:
    mask = draw(st.lists(st.integers(0, 1), max_size=6))
    ends = sorted(draw(st.sets(st.integers(0, max(len(mask) - 1, 0)), max_size=3))) if mask else []
    return Row(
        parts=(draw(part), draw(part)),
        group=draw(st.integers(-1, 2)),
        mask=mask,
        values=[draw(NUMBER) for _ in mask],
        steps=[(end, draw(NUMBER)) for end in ends],
    )


ROWS = st.lists(_rows(), min_size=1, max_size=10)
GREEDY = 0.25


def inputs_of(rows: list[Row], weights: tuple[float, float] = (1.0, 1.0)) -> AdvantageInputs:
    return advantage_inputs(
        [row.reward if row.scorable else math.nan for row in rows],
        [row.group for row in rows],
        loss_mask=[row.mask for row in rows],
        components=[[math.nan if part is None else part for part in row.parts] for row in rows],
        weights=weights,
        steps=[row.steps for row in rows],
        values=[row.values for row in rows],
        greedy_rewards=[GREEDY] * len(rows),
    )


def estimate(name: str, rows: list[Row], **options: Any) -> AdvantageOutputs:
    estimator = build("advantages", {"name": name, **options})
    assert isinstance(estimator, AdvantageEstimator)
    return estimator(inputs_of(rows))


def tokens_of(rows: list[Row], got: AdvantageOutputs) -> list[list[float]]:
    """Advantage of every token, 0 where masked."""
    if got.token_advantages is None:
        return [[a * m for m in row.mask] for a, row in zip(got.advantages, rows, strict=True)]
    starts = got.token_advantages.starts
    return [
        list(got.token_advantages.values[start : start + len(row.mask)])
        for start, row in zip(starts, rows, strict=True)
    ]


# The formulas. Each takes the rows and gives an advantage per token; masked ones are compared as 0.


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def deviation(values: list[float], ddof: int) -> float:
    return math.sqrt(math.fsum((v - mean(values)) ** 2 for v in values) / (len(values) - ddof))


def flat(values: list[float]) -> bool:
    return not values or max(values) - min(values) <= 1e-9 * max(map(abs, values))


def siblings(rows: list[Row], row: Row) -> list[Row]:
    return [other for other in rows if other.group == row.group and other.scorable]


def rewards_of(rows: list[Row]) -> list[float]:
    return [row.reward for row in rows if row.scorable]


def of_rows(rows: list[Row], advantage: Callable[[Row, list[float]], float]) -> list[list[float]]:
    """The same advantage for all tokens of a row, 0 unless its group has spread."""
    result = []
    for row in rows:
        group = rewards_of(siblings(rows, row))
        silent = not row.scorable or len(group) < 2 or flat(group)
        result.append([0.0 if silent else advantage(row, group)] * len(row.mask))
    return result


def whiten(rows: list[Row], tokens: list[list[float]], counted: list[bool]) -> list[list[float]]:
    pool = [
        value
        for row, values, counts in zip(rows, tokens, counted, strict=True)
        for value, masked in zip(values, row.mask, strict=True)
        if masked and counts
    ]
    if flat(pool):
        return [[0.0] * len(values) for values in tokens]
    scale = math.sqrt(deviation(pool, 1) ** 2 + 1e-8)
    return [
        [(value - mean(pool)) / scale if counts else 0.0 for value in values]
        for values, counts in zip(tokens, counted, strict=True)
    ]


def leave_one_out(rows: list[Row]) -> list[list[float]]:
    def advantage(row: Row, group: list[float]) -> float:
        others = list(group)
        others.remove(row.reward)
        return row.reward - mean(others)

    return of_rows(rows, advantage)


def leave_one_out_normalized(rows: list[Row]) -> list[list[float]]:
    plain = leave_one_out(rows)
    compared = [len(siblings(rows, row)) > 1 and row.scorable for row in rows]
    single = leave_one_out([Row(r.parts, r.group, [1], [0.0], []) for r in rows])
    pool = [values[0] for values, counts in zip(single, compared, strict=True) if counts]
    if flat(pool):
        return [[0.0] * len(values) for values in plain]
    scale = deviation(pool, 0) + EPS
    return of_rows(rows, lambda row, _: (single[_place(rows, row)][0] - mean(pool)) / scale)


def reinforce_plus_plus(rows: list[Row], gamma: float = 0.5) -> list[list[float]]:
    returns = []
    for row in rows:
        later, reversed_returns = row.reward, []
        for place in reversed(range(len(row.mask))):
            reversed_returns.append(later)
            if row.mask[place]:
                later *= gamma
        returns.append(reversed_returns[::-1])
    return whiten(rows, returns, [row.scorable for row in rows])


def reinforce_plus_plus_baseline(rows: list[Row]) -> list[list[float]]:
    centred = of_rows(rows, lambda row, group: row.reward - mean(group))
    compared = [len(siblings(rows, row)) > 1 and row.scorable for row in rows]
    return whiten(rows, centred, compared)


def opo(rows: list[Row]) -> list[list[float]]:
    def advantage(row: Row, _: list[float]) -> float:
        members = siblings(rows, row)
        tokens = sum(other.length for other in members)
        return row.reward - sum(o.reward * o.length for o in members) / tokens

    return of_rows(rows, lambda row, g: advantage(row, g) if row.length else 0.0)


def remax(rows: list[Row]) -> list[list[float]]:
    return [[r.reward - GREEDY if r.scorable else 0.0] * len(r.mask) for r in rows]


def max_rl(rows: list[Row]) -> list[list[float]]:
    def advantage(row: Row, group: list[float]) -> float:
        rate = mean(group)
        return (row.reward - rate) / (rate + 1e-6) if rate > 0 else 0.0

    return of_rows(rows, advantage)


def pass_at_k(rows: list[Row]) -> list[list[float]]:
    def advantage(row: Row, group: list[float]) -> float:
        second, best = sorted(group)[-2:]
        return (best - second) / (deviation(group, 0) + EPS) if row.reward == best else 0.0

    return of_rows(rows, advantage)


def gpg(rows: list[Row]) -> list[list[float]]:
    known = rewards_of(rows)
    scale = len(known) / max(sum(reward != 0 for reward in known), 1)
    return of_rows(rows, lambda row, group: scale * (row.reward - mean(group)))


def _gdpo_scores(rows: list[Row]) -> list[float]:
    scores = []
    for row in rows:
        terms = []
        for k in (0, 1):
            group = [other.parts[k] for other in rows if other.group == row.group]
            known, own = [part for part in group if part is not None], row.parts[k]
            if own is not None and len(known) > 1 and not flat(known):
                terms.append((own - mean(known)) / (deviation(known, 0) + EPS))
        scores.append(math.fsum(terms))
    return scores


def gdpo(rows: list[Row]) -> list[list[float]]:
    scores = _gdpo_scores(rows)
    pool = [s for s, row in zip(scores, rows, strict=True) if row.scorable]
    scale = 0.0 if flat(pool) else 1 / (deviation(pool, 0) + EPS)
    return [
        [(s - mean(pool)) * scale if row.scorable else 0.0] * len(row.mask)
        for s, row in zip(scores, rows, strict=True)
    ]


def gdpo_token(rows: list[Row]) -> list[list[float]]:
    scores = [[s] * len(r.mask) for s, r in zip(_gdpo_scores(rows), rows, strict=True)]
    compared = [len(siblings(rows, row)) > 1 and row.scorable for row in rows]
    return whiten(rows, scores, compared)


def process_supervision(rows: list[Row]) -> list[list[float]]:
    result = []
    for row in rows:
        pool = [reward for other in siblings(rows, row) for _, reward in other.steps]
        silent = not row.scorable or flat(pool)
        steps = [] if silent else [(e, (r - mean(pool)) / deviation(pool, 0)) for e, r in row.steps]
        result.append([math.fsum(z for e, z in steps if e >= t) for t in range(len(row.mask))])
    return result


def gae_raw(rows: list[Row], gamma: float, lam: float) -> list[list[float]]:
    result = []
    for row in rows:
        reward, advantage, value = row.reward, 0.0, 0.0
        found = [0.0] * len(row.mask)
        for place in reversed(range(len(row.mask))):
            if row.mask[place] and row.scorable:
                delta = reward + gamma * value - row.values[place]
                advantage, value, reward = delta + gamma * lam * advantage, row.values[place], 0.0
                found[place] = advantage
        result.append(found)
    return result


def gae(rows: list[Row]) -> list[list[float]]:
    return whiten(rows, gae_raw(rows, 0.5, 0.5), [row.scorable for row in rows])


def _place(rows: list[Row], row: Row) -> int:
    return next(place for place, other in enumerate(rows) if other is row)


def all_pairs(rows: list[Row]) -> list[list[float]]:
    result = []
    for row in rows:
        rivals = [other for other in siblings(rows, row) if other.length]
        largest = max((abs(other.reward) for other in rivals), default=0.0)
        better = [
            (one, two)
            for one in rivals
            for two in rivals
            if one.reward - two.reward > 1e-9 * largest
        ]
        won, lost = (sum(pair[side] is row for pair in better) for side in (0, 1))
        result.append([(won - lost) / max(len(better), 1)] * len(row.mask))
    return result


def right_answers(rows: list[Row]) -> list[list[float]]:
    return [[float(row.scorable and row.reward >= 0)] * len(row.mask) for row in rows]


FORMULAS: list[tuple[str, dict[str, Any], Callable[[list[Row]], list[list[float]]]]] = [
    ("leave_one_out", {}, leave_one_out),
    ("leave_one_out", {"normalize": True, "eps": EPS}, leave_one_out_normalized),
    ("reinforce_plus_plus", {"gamma": 0.5}, reinforce_plus_plus),
    ("reinforce_plus_plus_baseline", {}, reinforce_plus_plus_baseline),
    ("opo", {}, opo),
    ("remax", {}, remax),
    ("max_rl", {"eps": 1e-6}, max_rl),
    ("pass_at_k", {"eps": EPS}, pass_at_k),
    ("gpg", {}, gpg),
    ("gdpo", {"eps": EPS}, gdpo),
    ("gdpo", {"whiten": "token", "eps": EPS}, gdpo_token),
    ("process_supervision", {}, process_supervision),
    ("gae", {"gamma": 0.5, "lam": 0.5}, gae),
    ("pairs", {"pairing": "all"}, all_pairs),
    ("best", {"keep": None, "min_reward": 0.0}, right_answers),
]


@pytest.mark.parametrize(
    ("name", "options", "formula"),
    FORMULAS,
    ids=[formula.__name__ for _, _, formula in FORMULAS],
)
@given(rows=ROWS)
@settings(deadline=None, max_examples=40)
def test_equals_the_formula(
    name: str,
    options: dict[str, Any],
    formula: Callable[[list[Row]], list[list[float]]],
    rows: list[Row],
) -> None:
    got = tokens_of(rows, estimate(name, rows, **options))
    for row, found, wanted in zip(rows, got, formula(rows), strict=True):
        trained = [a if m else 0.0 for a, m in zip(wanted, row.mask, strict=True)]
        np.testing.assert_allclose(found, trained, rtol=1e-9, atol=1e-9)


def test_every_estimator_has_a_formula() -> None:
    assert {name for name, _, _ in FORMULAS} | {"group"} == set(menu("advantages"))


@given(rows=ROWS, random=st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=40)
def test_the_order_of_rows_changes_no_digit(rows: list[Row], random: Any) -> None:
    order = list(range(len(rows)))
    random.shuffle(order)
    mixed = [rows[place] for place in order]
    for name, options, _ in FORMULAS:
        straight, other = estimate(name, rows, **options), estimate(name, mixed, **options)
        np.testing.assert_array_equal(other.advantages, straight.advantages[order])
        np.testing.assert_array_equal(other.informative, straight.informative[order])
        tokens = tokens_of(rows, straight)
        assert tokens_of(mixed, other) == [tokens[place] for place in order]


@given(rows=ROWS, constant=st.integers(-8, 8), group=st.integers(-1, 2))
@settings(deadline=None, max_examples=40)
def test_a_constant_added_to_a_group_changes_nothing(
    rows: list[Row], constant: int, group: int
) -> None:
    # One part only: a missing part counts 0, and would not take part in the shift.
    straight = [Row((r.parts[0], None), r.group, r.mask, r.values, r.steps) for r in rows]
    moved = [
        row
        if row.group != group or row.parts[0] is None
        else Row((row.parts[0] + constant, None), row.group, row.mask, row.values, row.steps)
        for row in straight
    ]
    for name in ("leave_one_out", "reinforce_plus_plus_baseline", "opo", "pass_at_k", "gdpo"):
        np.testing.assert_allclose(
            estimate(name, moved).advantages,
            estimate(name, straight).advantages,
            rtol=1e-9,
            atol=1e-9,
        )


EXTREME = st.sampled_from([None, 0.0, 1.0, 1e6, -1e6, 1e300, -1e300, 5e-324, 1e-300])


@given(rows=st.lists(_rows(EXTREME), min_size=1, max_size=8))
@settings(deadline=None, max_examples=40)
def test_extremes_stay_finite(rows: list[Row]) -> None:
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        for name in menu("advantages"):
            got = estimate(name, rows)
            assert np.isfinite(got.advantages).all()
            assert got.token_advantages is None or np.isfinite(got.token_advantages.values).all()
