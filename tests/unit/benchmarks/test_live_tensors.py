"""Bytes of tensors that are alive, as reports/critic.md counts them."""

from __future__ import annotations

import torch

from benchmarks.live_tensors import LiveTensors


def test_what_is_alive_and_the_most_that_was() -> None:
    given = torch.ones(1000)
    with LiveTensors() as memory:
        doubled = given * 2
        assert memory.alive == 8000  # the one that was there before is read
        view = doubled.view(10, 100)[3]
        del doubled
        assert memory.alive == 8000  # a view keeps its storage
        total = view.sum() + given.sum()
        del view
    assert memory.alive == 4000 + 4
    assert memory.peak >= 8000 + 3 * 4
    assert total.item() == 200 + 1000


def test_what_backward_keeps_is_counted() -> None:
    weight = torch.ones(1000, requires_grad=True)
    with LiveTensors() as memory:
        loss = (weight.exp() * weight.sin()).sum()
        before = memory.alive
        loss.backward()
    assert before == 3 * 4000 + 4  # the weight, both factors, and the loss; their product is gone
    assert weight.grad is not None
    assert memory.peak >= before + 4000
    assert memory.alive < before
