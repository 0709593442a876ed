"""Which rows make an optimizer step, and which of them share a forward pass.

Every epoch shuffles whole groups by a seed of (seed, iteration, epoch) and deals them to the optimizer steps. Inside
a step, rows are sorted by length and packed into micro-batches of at most so many tokens, padding included. How they
are packed does not change the gradient: all denominators are those of the step.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pipeline.ids import seed_of
from pipeline.ragged import IntArray


def deal_to_steps(
    groups: IntArray,
    kept: NDArray[np.bool_],
    optimizer_steps: int,
    seed: int,
    iteration: str,
    epoch: int,
) -> list[IntArray]:
    """Row indices of each optimizer step of an epoch; whole groups stay together.

    Args:
        groups: [R] label of each row's group.
        kept: [R] rows that take part at all.
        optimizer_steps: parts to make; fewer if there are fewer groups.
        seed, iteration, epoch: decide the order of groups.
    """
    labels = np.unique(groups[kept])
    order = np.random.default_rng(seed_of("epoch", seed, iteration, epoch)).permutation(labels)
    step_of_group = np.full(groups.max(initial=-1) + 1, -1, dtype=np.int64)
    parts = min(optimizer_steps, len(labels))
    for step, part in enumerate(np.array_split(order, parts) if parts else []):
        step_of_group[part] = step
    step_of_row = np.where(kept, step_of_group[groups], -1)
    return [np.flatnonzero(step_of_row == step) for step in range(parts)]


def micro_batches(index: IntArray, lengths: IntArray, budget_tokens: int) -> Iterator[IntArray]:
    """Packs rows, longest first, so that rows × longest of a micro-batch stays within the budget.

    A row longer than the budget goes alone.

    Args:
        index: rows to pack.
        lengths: [R] tokens of every row of the iteration.
        budget_tokens: tokens of a micro-batch, padding included.
    """
    order = index[np.argsort(-lengths[index], kind="stable")]
    while len(order):
        rows = max(1, budget_tokens // int(lengths[order[0]]))
        yield order[:rows]
        order = order[rows:]
