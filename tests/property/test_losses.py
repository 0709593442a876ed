"""Losses against loops written from the papers in plain Python floats, one token at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.components.losses.base import Loss
from rollbook.components.losses.dapo import Dapo
from rollbook.components.losses.dr_grpo import DrGrpo
from rollbook.components.losses.grpo import Grpo
from tests.unit.components.losses.inputs import gradient, loss_inputs

MAX_COMPLETION_TOKENS = 10
LOGPROB = st.floats(-4, 0).map(lambda value: round(value, 3))


@dataclass(frozen=True)
class Batch:
    """Rows of one optimizer step; `tokens[i]` is (policy, old, ref, trained on) of each token."""

    tokens: list[list[tuple[float, float, float, bool]]]
    advantages: list[float]
    low: float
    high: float
    delta: float | None
    kl_coef: float
    corrected: bool
    level: str

    def loss(self, kind: type[Loss]) -> Loss:
        return kind(
            clip_low=self.low,
            clip_high=self.high,
            delta=self.delta,
            kl_coef=self.kl_coef,
            kl_bias_correction=self.corrected,
            ratio=self.level,
        )

    def inputs(self) -> Any:
        width = max(len(row) for row in self.tokens)
        padding = (math.nan, math.nan, math.nan, False)
        rows = [[*row, *[padding] * (width - len(row))] for row in self.tokens]
        policy, old, ref, mask = ([[token[k] for token in row] for row in rows] for k in range(4))
        return loss_inputs(
            policy,
            [[value] for value in self.advantages],
            mask,
            old_logprobs=old,
            ref_logprobs=ref,
            max_completion_tokens=MAX_COMPLETION_TOKENS,
        )


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    token = st.tuples(LOGPROB, LOGPROB, LOGPROB, st.booleans())
    tokens = draw(st.lists(st.lists(token, min_size=1, max_size=5), min_size=1, max_size=4))
    high = draw(st.sampled_from([0.2, 0.28, 1.0]))
    return Batch(
        tokens=tokens,
        advantages=draw(st.lists(st.floats(-2, 2), min_size=len(tokens), max_size=len(tokens))),
        low=draw(st.sampled_from([0.0003, 0.2, 0.9])),
        high=high,
        delta=draw(st.sampled_from([None, 1 + high, 3.0])),
        kl_coef=draw(st.sampled_from([0.0, 0.04, 1.0])),
        corrected=draw(st.booleans()),
        level=draw(st.sampled_from(["token", "sequence_mean", "sequence_product"])),
    )


def naive(batch: Batch, kind: type[Loss]) -> float:
    """The loss, token by token."""
    rows, count = [], 0
    for row, advantage in zip(batch.tokens, batch.advantages, strict=True):
        trained = [token for token in row if token[3]]
        logs = [policy - old for policy, old, _, _ in trained]
        values = []
        for (policy, _, ref, _), log in zip(trained, logs, strict=True):
            level = {
                "token": log,
                "sequence_mean": sum(logs) / len(logs),
                "sequence_product": max(-20.0, min(20.0, sum(logs))),
            }[batch.level]
            ratio = math.exp(level)
            free = ratio if batch.delta is None else min(ratio, batch.delta)
            held = max(1 - batch.low, min(1 + batch.high, ratio))
            value = -min(free * advantage, held * advantage)
            if batch.kl_coef:
                k3 = math.exp(ref - policy) - (ref - policy) - 1
                value += batch.kl_coef * k3 * (math.exp(log) if batch.corrected else 1.0)
            values.append(value)
        rows.append(values)
        count += len(values)
    if kind is Grpo:
        return sum(sum(values) / max(len(values), 1) for values in rows) / len(rows)
    total = sum(sum(values) for values in rows)
    if kind is Dapo:
        return total / max(count, 1)
    return total / (len(rows) * MAX_COMPLETION_TOKENS)


@pytest.mark.parametrize("kind", [Grpo, Dapo, DrGrpo])
@settings(max_examples=100, deadline=None)
@given(batch=batches())
def test_value_is_that_of_the_naive_loop(kind: type[Loss], batch: Batch) -> None:
    outputs = batch.loss(kind)(batch.inputs())
    assert outputs.loss.item() == pytest.approx(naive(batch, kind), rel=1e-9, abs=1e-11)


@pytest.mark.parametrize("kind", [Grpo, Dapo, DrGrpo])
@settings(max_examples=40, deadline=None)
@given(batch=batches(), data=st.data())
def test_gradient_is_the_difference_quotient_of_the_naive_loop(
    kind: type[Loss], batch: Batch, data: st.DataObject
) -> None:
    """Away from kinks: where a step of 1e-5 to either side gives the same slope."""
    inputs = batch.inputs()
    found = gradient(inputs, batch.loss(kind)(inputs).loss)
    row = data.draw(st.integers(0, len(batch.tokens) - 1))
    place = data.draw(st.integers(0, len(batch.tokens[row]) - 1))

    def moved(step: float) -> float:
        tokens = [list(tokens_of_row) for tokens_of_row in batch.tokens]
        policy, *rest = tokens[row][place]
        tokens[row][place] = (policy + step, *rest)  # type: ignore[assignment]
        return naive(replace(batch, tokens=tokens), kind)

    here, step = moved(0.0), 1e-5
    left, right = (here - moved(-step)) / step, (moved(step) - here) / step
    if abs(left - right) < 1e-3 * max(1.0, abs(left)):
        assert found[row][place] == pytest.approx((left + right) / 2, rel=1e-3, abs=1e-4)


@settings(max_examples=40, deadline=None)
@given(batch=batches(), data=st.data())
def test_order_of_rows_and_width_of_padding_do_not_matter(
    batch: Batch, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(batch.tokens))))
    inputs = batch.inputs()
    loss = batch.loss(Dapo)
    want = gradient(inputs, loss(inputs).loss)
    longer = [*(batch.tokens[place] for place in order), [(0.0, 0.0, 0.0, False)] * 9]
    other = replace(
        batch, tokens=longer, advantages=[*(batch.advantages[place] for place in order), 1.0]
    ).inputs()
    got = gradient(other, loss(other).loss)
    for position, place in enumerate(order):
        width = len(batch.tokens[place])
        assert got[position][:width] == pytest.approx(want[place][:width], rel=1e-12, abs=1e-15)
        assert not any(got[position][width:])
    assert not torch.isnan(torch.tensor(got)).any()
