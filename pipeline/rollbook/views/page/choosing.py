"""What of many rollouts fits on a page: whole groups, chosen by the hash in their ids, as many of every iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ROLLOUTS = 20_000
"""Rollouts on a page unless told; a browser filters so many in an instant."""
CHARACTERS = 20_000_000
"""Of all completions together; the file grows by about a byte for three."""
TOKENS = 200_000
"""Of all completions that are shown token by token; each adds about four bytes to the file."""
SHORTEST = 200
"""Characters that are always kept of a completion."""
EVALUATION_SHARE = 4
"""Evaluations get a quarter of the room of training, beside it; of rollouts also what training leaves."""


@dataclass(frozen=True)
class PageLimits:
    """What the page holds at most.

    Attributes:
        rollouts: of training; of evaluations a quarter beside it, and what training leaves.
        characters: of all completions; prompts, reference answers and errors have a quarter of it beside.
        tokens: of all completions that are shown token by token.
    """

    rollouts: int = ROLLOUTS
    characters: int = CHARACTERS
    tokens: int = TOKENS

    def of_evaluation(self, rollouts: int) -> PageLimits:
        """What it holds of evaluations, beside that.

        Args:
            rollouts: of training, that are stored.
        """
        characters, tokens = (
            -(-each // EVALUATION_SHARE) for each in (self.characters, self.tokens)
        )
        left = max(0, self.rollouts - rollouts)
        return PageLimits(self.rollouts // EVALUATION_SHARE + left, characters, tokens)

    def have_room_for(self, rollouts: int, answers: int) -> bool:
        """Whether so many rollouts and evaluation answers are all on the page."""
        return rollouts <= self.rollouts and answers <= self.of_evaluation(rollouts).rollouts


def enough(rollouts: int, answers: int) -> int:
    """The smallest `PageLimits.rollouts` that have room for all of them."""
    both = rollouts + answers
    return max(rollouts, -(-both * EVALUATION_SHARE // (EVALUATION_SHARE + 1)))


def rows_of_groups(group_ids: Sequence[str], most: int) -> list[int]:
    """Places of whole groups with at most `most` rollouts together, in the order of the table.

    Ids of prompts are hashes: the first of them are a sample.

    Args:
        group_ids: of every rollout.
        most: rollouts; a first group larger than it is cut.
    """
    if len(group_ids) <= most:
        return list(range(len(group_ids)))
    members: dict[str, list[int]] = {}
    for place, group in enumerate(group_ids):
        members.setdefault(group, []).append(place)
    rows: list[int] = []
    for group in sorted(members):
        if len(rows) + len(members[group]) > most:
            break
        rows += members[group]
    return sorted(rows) if rows else members[min(members)][:most]


def shares(counts: Mapping[str, int], most: int) -> dict[str, int]:
    """How many each may have of `most`: all get the same, and what small ones leave goes to the others."""
    left, found = most, {}
    for place, key in enumerate(sorted(counts, key=lambda each: (counts[each], each))):
        found[key] = min(counts[key], left // (len(counts) - place))
        left -= found[key]
    return found


def longest_kept(lengths: Sequence[int], most: int) -> int | None:
    """The length to which texts are cut so that all together keep to `most`; None if none needs to be.

    Args:
        lengths: of the texts, in characters.
        most: characters of all.
    """
    ordered: NDArray[np.int64] = np.sort(np.asarray(lengths, dtype=np.int64))
    if not len(ordered) or ordered.sum() <= most:
        return None
    before = np.concatenate([[0], np.cumsum(ordered)[:-1]])
    room = (most - before) // np.arange(len(ordered), 0, -1)
    return max(int(room[np.argmax(room < ordered)]), SHORTEST)


def viewed_rows(groups: Sequence[str], tokens: Sequence[int], most: int) -> list[int]:
    """Of rollouts the places of those that are shown token by token: whole groups, `most` tokens together.

    Args:
        groups: of every rollout.
        tokens: of every rollout; 0 of one that cannot be shown so.
        most: tokens of all.
    """
    of_group: dict[str, int] = {}
    for group, count in zip(groups, tokens, strict=True):
        of_group[group] = of_group.get(group, 0) + count
    kept, used = set(), 0
    for group in sorted(of_group):
        if used + of_group[group] <= most:
            kept.add(group)
            used += of_group[group]
    return [at for at, group in enumerate(groups) if group in kept and tokens[at]]
