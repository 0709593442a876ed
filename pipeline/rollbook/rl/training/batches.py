"""Which rows make an optimizer step, and which of them share a forward pass.

Every epoch shuffles whole groups by a seed of (seed, iteration, epoch) and deals them to the optimizer steps. Inside
a step, rows with the same prompt are written into one sequence where that saves work; sequences are sorted by length
and packed into micro-batches of at most so many tokens, padding included. How rows are packed does not change the
gradient: all denominators are those of the step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from rollbook.core.ids import seed_of
from rollbook.core.ragged import IntArray, Ragged
from rollbook.rl.tokens import TokenBatch, shared_token_batch, token_batch


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


@dataclass(frozen=True)
class MicroBatch:
    """Rows that go through the model together.

    Attributes:
        rows: [B] row indices; those of a sequence stand together.
        sequence_of: [B] number of the sequence that each row is written into, from 0; its rows have the same prompt.
    """

    rows: IntArray
    sequence_of: IntArray


def micro_batches(
    index: IntArray,
    prompts: Ragged,
    completions: Ragged,
    budget_tokens: int,
    break_even_tokens: float | None = None,
    whole_prompts: bool = False,
) -> Iterator[MicroBatch]:
    """Packs rows, longest sequences first, so that sequences × longest of a micro-batch stays within the budget.

    A row longer than the budget goes alone, and so do the rows of a prompt that must stay together and do not fit.

    Args:
        index: rows to pack.
        prompts, completions: token ids of every row of the iteration.
        budget_tokens: tokens of a micro-batch, padding included.
        break_even_tokens: see `sequences_of`; None: every row is a sequence of its own.
        whole_prompts: whether rows with the same prompt stay together, as a loss that compares them needs.
    """
    lengths = prompts.lengths + completions.lengths
    if break_even_tokens is None:
        sequences = [np.array([row]) for row in index]
    else:
        sequences = sequences_of(index, prompts, completions, budget_tokens, break_even_tokens)
    units: dict[object, list[IntArray]] = {}
    for place, rows in enumerate(sequences):
        units.setdefault(prompts.key_of(rows[0]) if whole_prompts else place, []).append(rows)
    packed = list(units.values())
    widths = np.array(
        [
            max(lengths[rows[0]] + completions.lengths[rows[1:]].sum() for rows in unit)
            for unit in packed
        ],
        np.int64,
    )
    sizes = np.array([len(unit) for unit in packed], np.int64)
    order = np.argsort(-widths, kind="stable")
    while len(order):
        room = budget_tokens // widths[order[0]]
        count = max(1, int(np.searchsorted(np.cumsum(sizes[order]), room, "right")))
        together = [rows for place in order[:count] for rows in packed[place]]
        yield MicroBatch(
            np.concatenate(together), np.repeat(np.arange(len(together)), list(map(len, together)))
        )
        order = order[count:]


def batch_of(
    part: MicroBatch, prompts: Ragged, completions: Ragged, device: torch.device
) -> TokenBatch:
    """The rows of a micro-batch as input of a model."""
    given = prompts.rows(part.rows), completions.rows(part.rows)
    if part.sequence_of[-1] + 1 == len(part.rows):
        return token_batch(*given, device)
    return shared_token_batch(*given, part.sequence_of, device)


def sequences_of(
    index: IntArray,
    prompts: Ragged,
    completions: Ragged,
    budget_tokens: int,
    break_even_tokens: float,
) -> list[IntArray]:
    """Rows of one prompt dealt to as many sequences as cost least.

    A position of a sequence of L costs 1 + L / `break_even_tokens`: its way through the matrices, and attention to all
    others, which the completions of a sequence pay for each other although masked. Short completions behind a long
    prompt end up in one sequence, long ones behind a short prompt alone.

    Args:
        index: rows.
        prompts, completions: token ids of every row of the iteration.
        budget_tokens: no sequence of several rows is longer.
        break_even_tokens: length at which attention costs as much as all matrices.
    """
    by_prompt: dict[bytes, list[int]] = {}
    for row in index:
        by_prompt.setdefault(prompts.key_of(row), []).append(int(row))
    found = []
    for rows in by_prompt.values():
        prompt = int(prompts.lengths[rows[0]])
        best, least = [np.array([row]) for row in rows], math.inf
        for count in range(1, len(rows) + 1):
            parts = _dealt(np.array(rows), completions.lengths, count)
            widths = np.array([prompt + completions.lengths[part].sum() for part in parts])
            cost = float((widths * (1 + widths / break_even_tokens)).sum())
            if cost < least and widths.max() <= budget_tokens:
                best, least = parts, cost
        found += best
    return found


def _dealt(rows: IntArray, lengths: IntArray, count: int) -> list[IntArray]:
    """Rows in `count` parts of about the same total length: the longest first, each to the part with least."""
    parts: list[list[int]] = [[] for _ in range(count)]
    totals = [0] * count
    for row in rows[np.argsort(-lengths[rows], kind="stable")]:
        least = totals.index(min(totals))
        parts[least].append(int(row))
        totals[least] += int(lengths[row])
    return [np.array(part, np.int64) for part in parts if part]
