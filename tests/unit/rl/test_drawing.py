"""Which prompts an iteration asks, worked by hand on small decks."""

from __future__ import annotations

import time

import numpy as np
import pytest

from rollbook.core.errors import DataError
from rollbook.rl.drawing import Deck, draw_prompts, preferred


def deck(label: str, size: int, weight: float | None = None, first: int = 0) -> Deck:
    return Deck(label, [f"{first + number:016x}" for number in range(size)], weight)


def chain(decks: list[Deck], counts: list[int], seed: int = 0) -> list[list[tuple[int, int]]]:
    """(deck, place) of every prompt of every iteration."""
    drawn = [draw_prompts(decks, seed, counts[:k], counts[k]) for k in range(len(counts))]
    return [list(zip(d.deck.tolist(), d.place.tolist(), strict=True)) for d in drawn]


def test_an_epoch_ends_inside_an_iteration() -> None:
    """10 cards, 4 at a time: the third iteration takes the last 2 and 2 of the next epoch, and these differ."""
    first, second, third, fourth, fifth = chain([deck("a", 10)], [4] * 5)
    assert len({*first, *second, *third[:2]}) == 10
    assert len(set(third)) == 4
    assert len({*third[2:], *fourth, *fifth}) == 10


def test_put_back_cards_come_first_in_the_next_iteration() -> None:
    """3 cards, 2 at a time: the second iteration's last card cannot be its first one; that one comes next."""
    for seed in range(20):
        first, second, third = chain([deck("a", 3)], [2, 2, 2], seed)
        assert len({*first, second[0]}) == 3
        assert second[0] != second[1]
        assert len({second[1], *third}) == 3
        shuffled = deck("a", 3).shuffled(seed, 1).tolist()
        if shuffled[0] == second[0][1]:
            assert third[0] == second[0]


def test_the_last_shorter_part_of_an_epoch_is_asked() -> None:
    """7 prompts, 3 an iteration: over 7 iterations (3 epochs) each is asked exactly 3 times."""
    drawn = [prompt for iteration in chain([deck("a", 7)], [3] * 7) for prompt in iteration]
    assert {drawn.count(prompt) for prompt in set(drawn)} == {3}


def test_nothing_depends_on_the_order_of_the_table() -> None:
    ids = [f"{number * 7919:016x}" for number in range(50)]
    one, other = Deck("a", ids), Deck("a", ids[::-1])
    draws = [draw_prompts([each], 3, [20, 20], 20).place for each in (one, other)]
    assert [ids[place] for place in draws[0]] == [ids[::-1][place] for place in draws[1]]


def test_seed_source_and_epoch_decide_the_shuffle() -> None:
    base = deck("a", 100).shuffled(0, 0).tolist()
    assert sorted(base) == list(range(100))
    for other in (
        deck("b", 100).shuffled(0, 0),
        deck("a", 100).shuffled(1, 0),
        deck("a", 100).shuffled(0, 1),
    ):
        assert other.tolist() != base
    places = np.mean([deck("a", 100).shuffled(seed, 0) for seed in range(400)], axis=0)
    # mean of 400 uniform draws from 0..99: 49.5, standard deviation 28.9 / 20 = 1.4; five of them
    assert np.abs(places - 49.5).max() < 7.2


def test_weights_share_an_iteration() -> None:
    """Weights 3 : 1 of 8 are 6 and 2, whatever the sizes; without weights the sizes decide, 30 : 10."""
    for weights in ((3.0, 1.0), (None, None)):
        decks = [deck("a", 30, weights[0]), deck("b", 10, weights[1], 100)]
        for iteration in chain(decks, [8] * 6):
            assert [number for number, _ in iteration].count(0) == 6


def test_fractions_are_owed_to_the_next_iteration() -> None:
    """1 : 1 of 3 is 1.5 each: two and one, then one and two."""
    decks = [deck("a", 30, 1.0), deck("b", 30, 1.0, 100)]
    counts = [[n for n, _ in iteration].count(0) for iteration in chain(decks, [3] * 6)]
    assert counts == [2, 1, 2, 1, 2, 1]


def test_sources_are_mixed_within_an_iteration() -> None:
    """The update splits an iteration into parts: 2 : 1 of 12 alternates, every third is of the second source."""
    (iteration,) = chain([deck("a", 30, 2.0), deck("b", 30, 1.0, 100)], [12])
    numbers = [number for number, _ in iteration]
    assert [numbers[start : start + 3].count(1) for start in range(0, 12, 3)] == [1, 1, 1, 1]


def test_a_small_source_gives_all_it_has_and_the_others_the_rest() -> None:
    """Weight 9 : 1 : 2 of 30 asks 22.5 of 5 prompts; the other 25 are shared 1 : 2."""
    decks = [deck("a", 5, 9.0), deck("b", 100, 1.0, 100), deck("c", 100, 2.0, 300)]
    for iteration in chain(decks, [30, 30, 30]):
        numbers = [number for number, _ in iteration]
        assert numbers.count(0) == 5
        assert abs(numbers.count(1) - 25 / 3) < 1
        assert len(set(iteration)) == 30


def test_a_source_that_lost_all_its_prompts_is_left_out() -> None:
    (iteration,) = chain([deck("a", 0, 5.0), deck("b", 10)], [10])
    assert sorted(iteration) == [(1, place) for place in range(10)]


def hand(decks: list[Deck], count: int, flat: list[int]) -> list[int]:
    """Places among the cards dealt, of an iteration that was dealt twice as many as it asks."""
    draw = draw_prompts(decks, 0, [], 2 * count)
    is_flat = np.isin(np.arange(2 * count), flat)
    return preferred(decks, draw, is_flat, count).tolist()


def test_flat_cards_are_asked_last_and_only_for_want_of_others() -> None:
    assert hand([deck("a", 30)], 4, flat=[]) == [0, 1, 2, 3]
    assert hand([deck("a", 30)], 4, flat=[0, 2]) == [1, 3, 4, 5]
    assert hand([deck("a", 30)], 4, flat=[0, 1, 3, 4, 6, 7]) == [2, 5, 0, 1]
    assert hand([deck("a", 30)], 4, flat=list(range(8))) == [0, 1, 2, 3]


def test_a_preference_does_not_take_from_one_source_for_another() -> None:
    """Dealt a b a b a b a b; all of a is flat: still two of each."""
    decks = [deck("a", 30, 1.0), deck("b", 30, 1.0, 100)]
    assert hand(decks, 4, flat=[0, 2, 4, 6]) == [0, 1, 2, 3]
    assert hand(decks, 4, flat=[0, 1, 2]) == [4, 3, 6, 5]


def test_a_preference_asks_by_weight_even_if_all_there_is_was_dealt() -> None:
    """Weights 1 : 1 of 8 asks 4 of each, although 12 and 4 were dealt."""
    decks = [deck("a", 12, 1.0), deck("b", 4, 1.0, 100)]
    draw = draw_prompts(decks, 0, [], 16)
    assert draw.deck[hand(decks, 8, flat=[])].tolist().count(1) == 4


def test_more_prompts_than_there_are() -> None:
    decks = [deck("a", 3), deck("b", 4, None, 100)]
    assert len(chain(decks, [7])[0]) == 7
    with pytest.raises(
        DataError, match=r"is 8, but the training data has 7 prompts.*\n.*at most 7"
    ):
        draw_prompts(decks, 0, [], 8)


def test_a_million_prompts_and_a_long_chain_take_seconds() -> None:
    decks = [deck("a", 1_000_000), deck("b", 1_000, 1e5, 2_000_000)]
    started = time.perf_counter()
    drawn = draw_prompts(decks, 0, [1024] * 10_000, 1024)
    assert time.perf_counter() - started < 10  # 0.7 s when written
    assert len(set(drawn.place[drawn.deck == 0])) == (drawn.deck == 0).sum()
    assert sum(drawn.dealt) == 10_001 * 1024
