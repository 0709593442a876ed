"""Which prompts an iteration asks: a pure function of the data, the seed and how many were drawn before.

Every source is a deck of cards. A deck is shuffled once per epoch, by a hash of (seed, source, epoch, prompt_id), and
dealt to its end, across the borders of iterations; then a new epoch begins. A card that was dealt in the old epoch of
the same iteration is passed over and dealt first thing in the next iteration, so that no iteration asks a prompt
twice and every epoch still asks each prompt exactly once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rollbook.core.errors import DataError
from rollbook.core.ids import GOLDEN_GAMMA, mixed, seed_of

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Deck:
    """The prompts of one source.

    Attributes:
        label: name of the source; its shuffles depend on it.
        prompt_ids: 16 hex digits each, all different.
        weight: share among the prompts of an iteration, relative to the other decks; None = the number of its prompts.
    """

    label: str
    prompt_ids: Sequence[str]
    weight: float | None = None

    @property
    def size(self) -> int:
        return len(self.prompt_ids)

    @cached_property
    def _numbers(self) -> NDArray[np.uint64]:
        return np.frombuffer(bytes.fromhex("".join(self.prompt_ids)), dtype=">u8").astype(np.uint64)

    def shuffled(self, seed: int, epoch: int) -> IntArray:
        """[size] places in the order of this epoch; does not depend on the order of `prompt_ids`."""
        mark = np.uint64(seed_of("draw", seed, self.label, epoch))
        return np.argsort(mixed((self._numbers ^ mark) + GOLDEN_GAMMA), kind="stable")


@dataclass(frozen=True)
class Draw:
    """The prompts of one iteration, in the order in which they are asked.

    Attributes:
        deck: [count] number of the deck that each comes from.
        place: [count] its place in that deck's `prompt_ids`.
        counts: [iterations, decks] cards dealt of each deck by each iteration of the chain, this one last.
    """

    deck: IntArray
    place: IntArray
    counts: IntArray

    @property
    def dealt(self) -> list[int]:
        """By deck, how many cards were dealt up to and including this iteration."""
        dealt: list[int] = self.counts.sum(axis=0).tolist()
        return dealt


def draw_prompts(decks: Sequence[Deck], seed: int, draws: Sequence[int], count: int) -> Draw:
    """The prompts of the iteration that follows `len(draws)` others.

    Args:
        decks: one per source; empty ones are left out of account.
        seed: decides all shuffles.
        draws: prompts drawn by each predecessor in the chain, oldest first.
        count: prompts wanted.

    Raises:
        DataError: if more prompts are wanted in one iteration than there are.
    """
    available = sum(deck.size for deck in decks)
    if (most := max([count, *draws])) > available:
        raise DataError(
            f"prompts_per_iteration, times oversample, is {most}, but the training data has {available} prompts, "
            "and an iteration asks none twice",
            f"lower one of the two in prepare_prompts, to at most {available} prompts in all, or add data",
        )
    counts = _counts(decks, [*draws, count])
    places = [_deal(deck, seed, counts[:, number]) for number, deck in enumerate(decks)]
    order = _interleaved(counts[-1])
    numbers = np.repeat(np.arange(len(decks)), counts[-1])
    return Draw(numbers[order], np.concatenate(places)[order], counts)


def preferred(decks: Sequence[Deck], draw: Draw, flat: NDArray[np.bool_], count: int) -> IntArray:
    """[count] which of the cards dealt are asked: of each deck its share, first those that are not flat.

    Both keep the order in which they were dealt. Shares are by weight, as in dealing; fractions are owed to the next
    iteration, given that the chain has always asked the same part of what it was dealt.

    Args:
        decks: that were dealt from.
        draw: what was dealt; at least `count` cards.
        flat: [dealt] cards to ask only for want of others.
        count: prompts to be asked.
    """
    dealt = draw.counts.sum(axis=1)
    asked = np.minimum(np.rint(dealt * (count / max(dealt[-1], 1))).astype(np.int64), dealt)
    counts = _counts(decks, asked.tolist(), draw.counts.tolist())[-1]
    chosen = []
    for number, wanted in enumerate(counts):
        cards = np.flatnonzero(draw.deck == number)
        chosen.append(np.concatenate([cards[~flat[cards]], cards[flat[cards]]])[:wanted])
    return np.concatenate(chosen)[_interleaved(counts)]


def _deal(deck: Deck, seed: int, counts: IntArray) -> IntArray:
    """The cards that the last of `counts` gets: the rest of an epoch, and the start of the next if need be."""
    position, wanted = int(counts[:-1].sum()), int(counts[-1])
    if not wanted:
        return np.empty(0, np.int64)
    epoch, offset = divmod(position, deck.size)
    cards = _order(deck, seed, epoch, counts)[offset : offset + wanted]
    if (missing := wanted - len(cards)) > 0:
        cards = np.concatenate([cards, _order(deck, seed, epoch + 1, counts)[:missing]])
    return cards


def _order(deck: Deck, seed: int, epoch: int, counts: IntArray) -> IntArray:
    """[size] an epoch's order: its shuffle, with the cards put back that its first iteration had dealt already.

    Those are the tail of the epoch before, which is that epoch's plain shuffle unless the deck is so small that
    its own put-back cards reach into the tail; only then its order is needed, and so on backwards.
    """
    ends = np.cumsum(counts)

    def border(number: int) -> tuple[int, int]:
        """Of the iteration in which this epoch begins: cards from the epoch before, and from this one on."""
        start = number * deck.size
        iteration = int(np.searchsorted(ends, start, side="right"))
        old = start - int(ends[iteration] - counts[iteration])
        return old, int(counts[iteration]) - old

    first = epoch
    while (
        first > 0 and border(first)[0] > 0 and deck.size - border(first)[0] < sum(border(first - 1))
    ):
        first -= 1
    order = deck.shuffled(seed, first - 1) if first > 0 and border(first)[0] > 0 else None
    for number in range(first, epoch + 1):
        old, new = border(number)
        shuffled = deck.shuffled(seed, number)
        if old > 0 and order is not None:
            shuffled = _put_back(shuffled, order[deck.size - old :], new)
        order = shuffled
    assert order is not None
    return order


def _put_back(shuffled: IntArray, asked: IntArray, dealt: int) -> IntArray:
    """Moves the `asked` cards behind the first `dealt` others."""
    is_asked = np.zeros(len(shuffled), bool)
    is_asked[asked] = True
    fresh = np.flatnonzero(~is_asked[shuffled])[:dealt]
    return np.concatenate([shuffled[fresh], np.delete(shuffled, fresh)])


def _counts(
    decks: Sequence[Deck], draws: Sequence[int], at_most: Sequence[Sequence[int]] | None = None
) -> IntArray:
    """[iterations, decks] cards of each deck: as its weight asks, to within one over the whole chain.

    Args:
        decks: one per source.
        draws: [iterations] cards in all.
        at_most: [iterations, decks] bounds; default the decks' sizes.
    """
    if len(decks) == 1:
        return np.array(draws, np.int64)[:, None]
    sizes = [deck.size for deck in decks]
    weights = [
        (deck.size if deck.weight is None else deck.weight) if deck.size else 0.0 for deck in decks
    ]
    owed = [0.0] * len(decks)
    rows = []
    for count, most in zip(draws, at_most or itertools.repeat(sizes), strict=False):
        shares = _shares(weights, sizes, count)
        owed = [debt + share for debt, share in zip(owed, shares, strict=True)]
        row = _rounded(owed, most, count)
        owed = [debt - dealt for debt, dealt in zip(owed, row, strict=True)]
        rows.append(row)
    return np.array(rows, np.int64)


def _shares(weights: Sequence[float], sizes: Sequence[int], count: int) -> list[float]:
    """`count` split by weight; what is more than a deck has goes to the others, by weight."""
    shares = [0.0] * len(sizes)
    open_decks = [number for number, size in enumerate(sizes) if size]
    while open_decks:
        left = count - sum(shares)
        total = sum(weights[number] for number in open_decks)
        asked = {number: left * weights[number] / total for number in open_decks}
        full = [number for number in open_decks if asked[number] >= sizes[number]]
        for number in full or open_decks:
            shares[number] = float(sizes[number]) if full else asked[number]
        open_decks = [number for number in open_decks if number not in full] if full else []
    return shares


def _rounded(owed: Sequence[float], sizes: Sequence[int], count: int) -> list[int]:
    """Whole numbers that add up to `count`, none above its deck's size, the largest debts rounded up."""
    numbers = range(len(owed))
    row = [min(max(math.floor(owed[number]), 0), sizes[number]) for number in numbers]
    for step in itertools.repeat(1 if sum(row) < count else -1, abs(count - sum(row))):
        able = [n for n in numbers if (row[n] < sizes[n] if step > 0 else row[n] > 0)]
        row[max(able, key=lambda n: step * (owed[n] - row[n]))] += step
    return row


def _interleaved(counts: IntArray) -> IntArray:
    """[sum of counts] an order in which every deck's cards, one deck behind the other, are spread evenly."""
    spread = [(np.arange(count) + 0.5) / count for count in counts if count]
    return np.argsort(np.concatenate(spread), kind="stable")
