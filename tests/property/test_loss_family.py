"""The other losses of the family against loops written from the papers in plain Python floats.

Two kinds: those whose gradient is that of their value, checked by a difference quotient, and those that multiply
log-probs by a constant weight, whose gradient is that weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.components.losses.base import Loss
from rollbook.components.losses.cispo import Cispo
from rollbook.components.losses.dppo import Dppo
from rollbook.components.losses.gmpo import Gmpo
from rollbook.components.losses.gpg import Gpg
from rollbook.components.losses.gspo import Gspo
from rollbook.components.losses.luspo import Luspo
from rollbook.components.losses.reinforce import Reinforce
from rollbook.components.losses.rloo import Rloo
from rollbook.components.losses.sapo import Sapo
from rollbook.components.losses.vespo import Vespo
from tests.property.test_losses import Batch, batches
from tests.unit.components.losses.inputs import gradient

Row = list[tuple[float, float]]
"""Policy and old log-prob of each trained-on token."""


@dataclass(frozen=True)
class Naive:
    """A loss and its loop: the terms of a row's tokens, or their weights, and how rows are added up."""

    loss: Loss
    of_row: Callable[[Row, float], list[float]]
    by_row: bool
    """Mean over rows of token means, else mean over all tokens."""

    def scale(self, batch: Batch, row: Row) -> float:
        if self.by_row:
            return 1 / (len(batch.tokens) * max(len(row), 1))
        return 1 / max(sum(len(trained(tokens)) for tokens in batch.tokens), 1)

    def value(self, batch: Batch) -> float:
        return sum(
            sum(self.of_row(row, advantage)) * self.scale(batch, row)
            for row, advantage in zip(map(trained, batch.tokens), batch.advantages, strict=True)
        )


def trained(tokens: list[tuple[float, float, float, bool]]) -> Row:
    return [(policy, old) for policy, old, _, mask in tokens if mask]


def logs(row: Row) -> list[float]:
    return [policy - old for policy, old in row]


def clipped(ratio: float, advantage: float, low: float, high: float) -> float:
    return -min(ratio * advantage, max(1 - low, min(1 + high, ratio)) * advantage)


def gspo(row: Row, advantage: float) -> list[float]:
    s = math.exp(sum(logs(row)) / max(len(row), 1))
    return [clipped(s, advantage, 0.1, 0.3)] * len(row)


def luspo(row: Row, advantage: float) -> list[float]:
    return [len(row) * term for term in gspo(row, advantage)]


def rloo(row: Row, advantage: float) -> list[float]:
    product = math.exp(max(-20.0, min(20.0, sum(logs(row)))))
    return [clipped(product, advantage, 0.2, 0.2)] * len(row)


def sapo(row: Row, advantage: float) -> list[float]:
    tau = 2.0 if advantage > 0 else 3.0
    return [-4 / tau / (1 + math.exp(-tau * (math.exp(log) - 1))) * advantage for log in logs(row)]


def gmpo(row: Row, advantage: float) -> list[float]:
    held = [min(log, 0.5) if advantage > 0 else max(log, -0.3) for log in logs(row)]
    return [-advantage * math.exp(sum(held) / max(len(row), 1))] * len(row)


def cispo(row: Row, advantage: float) -> list[float]:
    return [-max(0.5, min(1.5, math.exp(log))) * advantage for log in logs(row)]


def reinforce(row: Row, advantage: float) -> list[float]:
    return [-min(1.5, math.exp(log)) * advantage for log in logs(row)]


def gpg(row: Row, advantage: float) -> list[float]:
    return [-advantage] * len(row)


def vespo(row: Row, advantage: float) -> list[float]:
    k, decay = (2.0, 3.0) if advantage >= 0 else (3.0, 2.0)
    log_w = max(math.log(1e-8), min(20.0, sum(logs(row))))
    phi = math.exp(decay + k * log_w - decay * math.exp(log_w))
    return [-phi * advantage] * len(row)


def dppo(row: Row, advantage: float) -> list[float]:
    weights = []
    for policy, old in row:
        moved = math.exp(policy) - math.exp(old)
        inside = moved <= 0.1 if advantage > 0 else moved >= -0.2
        weights.append(-min(math.exp(policy - old), 3.0) * advantage * inside)
    return weights


VALUES = {
    "gspo": Naive(Gspo(clip_low=0.1, clip_high=0.3), gspo, True),
    "luspo": Naive(Luspo(clip_low=0.1, clip_high=0.3), luspo, True),
    "rloo": Naive(Rloo(), rloo, True),
    "sapo": Naive(Sapo(tau_pos=2.0, tau_neg=3.0), sapo, True),
    "gmpo": Naive(Gmpo(clip_low=0.3, clip_high=0.5), gmpo, True),
}
WEIGHTS = {
    "cispo": Naive(Cispo(cap=1.5, floor=0.5), cispo, False),
    "reinforce": Naive(Reinforce(cap=1.5), reinforce, False),
    "gpg": Naive(Gpg(), gpg, False),
    "vespo": Naive(Vespo(), vespo, False),
    "dppo": Naive(Dppo(clip_low=0.2, clip_high=0.1, cap=3.0), dppo, False),
}


@pytest.mark.parametrize("name", VALUES)
@settings(max_examples=40, deadline=None)
@given(batch=batches())
def test_value_is_that_of_the_naive_loop(name: str, batch: Batch) -> None:
    naive = VALUES[name]
    found = naive.loss(batch.inputs()).loss.item()
    assert found == pytest.approx(naive.value(batch), rel=1e-9, abs=1e-11)


@pytest.mark.parametrize("name", VALUES)
@settings(max_examples=25, deadline=None)
@given(batch=batches(), data=st.data())
def test_gradient_is_the_difference_quotient_of_the_naive_loop(
    name: str, batch: Batch, data: st.DataObject
) -> None:
    """Away from kinks: where a step of 1e-5 to either side gives the same slope."""
    naive, inputs = VALUES[name], batch.inputs()
    found = gradient(inputs, naive.loss(inputs).loss)
    row = data.draw(st.integers(0, len(batch.tokens) - 1))
    place = data.draw(st.integers(0, len(batch.tokens[row]) - 1))

    def moved(step: float) -> float:
        tokens: list[list[Any]] = [list(tokens_of_row) for tokens_of_row in batch.tokens]
        policy, *rest = tokens[row][place]
        tokens[row][place] = (policy + step, *rest)
        return naive.value(replace(batch, tokens=tokens))

    here, step = moved(0.0), 1e-5
    left, right = (here - moved(-step)) / step, (moved(step) - here) / step
    if abs(left - right) < 1e-3 * max(1.0, abs(left)):
        assert found[row][place] == pytest.approx((left + right) / 2, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("name", WEIGHTS)
@settings(max_examples=40, deadline=None)
@given(batch=batches())
def test_weights_are_those_of_the_naive_loop(name: str, batch: Batch) -> None:
    """The gradient is the weight of each log-prob, the value their sum with the log-probs."""
    naive, inputs = WEIGHTS[name], batch.inputs()
    loss = naive.loss(inputs).loss
    slopes, value = gradient(inputs, loss), 0.0
    for place, (tokens, advantage) in enumerate(zip(batch.tokens, batch.advantages, strict=True)):
        row = trained(tokens)
        want = [weight * naive.scale(batch, row) for weight in naive.of_row(row, advantage)]
        masks = [mask for *_, mask in tokens]
        got = [slope for slope, mask in zip(slopes[place], masks, strict=False) if mask]
        assert got == pytest.approx(want, rel=1e-9, abs=1e-12)
        value += sum(weight * policy for weight, (policy, _) in zip(want, row, strict=True))
    assert loss.item() == pytest.approx(value, rel=1e-9, abs=1e-11)
