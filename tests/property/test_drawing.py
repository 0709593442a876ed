"""Drawing against decks of cards dealt one by one, as the rule is written."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.rl.drawing import Deck, draw_prompts, preferred


def dealt_by_hand(deck: Deck, seed: int, counts: list[int]) -> list[list[int]]:
    """Takes the first card that this iteration has not had; shuffles anew when none is left."""
    pile: list[int] = []
    epoch, iterations = 0, []
    for count in counts:
        hand: list[int] = []
        while len(hand) < count:
            card = next((card for card in pile if card not in hand), None)
            if card is None:
                assert not pile
                pile, epoch = deck.shuffled(seed, epoch).tolist(), epoch + 1
            else:
                pile.remove(card)
                hand.append(card)
        iterations.append(hand)
    return iterations


@st.composite
def one_deck(draw: st.DrawFn) -> tuple[Deck, list[int]]:
    size = draw(st.integers(1, 12))
    ids = draw(st.lists(st.integers(0, 2**64 - 1), min_size=size, max_size=size, unique=True))
    counts = draw(st.lists(st.integers(1, size), min_size=1, max_size=15))
    return Deck("a", [f"{number:016x}" for number in ids]), counts


@st.composite
def several_decks(draw: st.DrawFn) -> tuple[list[Deck], list[int]]:
    sizes = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any))
    weights = draw(
        st.lists(st.none() | st.floats(0.01, 100), min_size=len(sizes), max_size=len(sizes))
    )
    decks = [
        Deck(f"s{number}", [f"{number:08x}{place:08x}" for place in range(size)], weight)
        for number, (size, weight) in enumerate(zip(sizes, weights, strict=True))
    ]
    counts = draw(st.lists(st.integers(1, sum(sizes)), min_size=1, max_size=15))
    return decks, counts


@given(one_deck(), st.integers(0, 99))
def test_equals_a_deck_dealt_card_by_card(case: tuple[Deck, list[int]], seed: int) -> None:
    """The chain dealt in one go equals every iteration drawn alone from its predecessors' counts."""
    deck, counts = case
    alone = [
        draw_prompts([deck], seed, counts[:k], counts[k]).place.tolist() for k in range(len(counts))
    ]
    assert alone == dealt_by_hand(deck, seed, counts)


@given(several_decks(), st.integers(0, 99))
def test_every_source_is_dealt_like_a_deck(case: tuple[list[Deck], list[int]], seed: int) -> None:
    decks, counts = case
    drawn = [draw_prompts(decks, seed, counts[:k], counts[k]) for k in range(len(counts))]
    for number, deck in enumerate(decks):
        hands = [draw.place[draw.deck == number].tolist() for draw in drawn]
        assert hands == dealt_by_hand(deck, seed, [len(hand) for hand in hands])


@given(several_decks(), st.integers(0, 99))
def test_epochs_are_complete_and_iterations_repeat_nothing(
    case: tuple[list[Deck], list[int]], seed: int
) -> None:
    decks, counts = case
    stream: list[list[int]] = [[] for _ in decks]
    for k, count in enumerate(counts):
        draw = draw_prompts(decks, seed, counts[:k], count)
        pairs = list(zip(draw.deck.tolist(), draw.place.tolist(), strict=True))
        assert len(pairs) == len(set(pairs)) == count
        for number, place in pairs:
            stream[number].append(place)
        assert draw.dealt == [len(places) for places in stream]
    for deck, places in zip(decks, stream, strict=True):
        for start in range(0, len(places) - deck.size + 1, deck.size or 1):
            assert sorted(places[start : start + deck.size]) == list(range(deck.size))


@settings(max_examples=200)
@given(
    st.lists(st.floats(0.1, 10), min_size=2, max_size=5),
    st.lists(st.integers(1, 40), min_size=1, max_size=30),
)
def test_weights_are_met_to_within_one_prompt(weights: list[float], counts: list[int]) -> None:
    """With decks large enough, every source has had its share of all draws so far, give or take one."""
    decks = [
        Deck(f"s{number}", [f"{number:08x}{place:08x}" for place in range(41)], weight)
        for number, weight in enumerate(weights)
    ]
    dealt = draw_prompts(decks, 0, counts[:-1], counts[-1]).dealt
    for weight, had in zip(weights, dealt, strict=True):
        assert abs(had - weight / sum(weights) * sum(counts)) < 1 + 1e-6


@given(several_decks(), st.data())
def test_a_preference_changes_who_is_asked_and_not_how_many_of_a_source(
    case: tuple[list[Deck], list[int]], data: st.DataObject
) -> None:
    decks, counts = case
    draw = draw_prompts(decks, 0, counts[:-1], counts[-1])
    drawn = len(draw.deck)
    flat = np.array(data.draw(st.lists(st.booleans(), min_size=drawn, max_size=drawn)), bool)
    count = data.draw(st.integers(1, drawn))
    asked = preferred(decks, draw, flat, count)
    assert len(set(asked.tolist())) == len(asked) == count
    of_deck = np.bincount(draw.deck[asked], minlength=len(decks))
    usual = preferred(decks, draw, np.zeros(drawn, bool), count)
    assert of_deck.tolist() == np.bincount(draw.deck[usual], minlength=len(decks)).tolist()
    for number in range(len(decks)):
        mine = asked[draw.deck[asked] == number]
        cards = np.flatnonzero(draw.deck == number)
        assert mine.tolist() == [*cards[~flat[cards]], *cards[flat[cards]]][: len(mine)]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(0.1, 10), min_size=2, max_size=4),
    st.integers(1, 12),
    st.floats(1.0, 3.0),
    st.integers(1, 40),
)
def test_a_preference_meets_weights_over_the_chain(
    weights: list[float], count: int, among: float, turns: int
) -> None:
    """Fractions are owed, so no source is favoured: two prompts off at most, one by dealing and one by asking."""
    decks = [
        Deck(f"s{number}", [f"{number:08x}{place:08x}" for place in range(37)], weight)
        for number, weight in enumerate(weights)
    ]
    drawn = int(np.ceil(count * among))
    asked = np.zeros(len(decks))
    for turn in range(turns):
        draw = draw_prompts(decks, 0, [drawn] * turn, drawn)
        cards = preferred(decks, draw, np.zeros(drawn, bool), count)
        asked += np.bincount(draw.deck[cards], minlength=len(decks))
    shares = np.array(weights) / sum(weights)
    assert (np.abs(asked - shares * count * turns) < 2 + 1e-6).all()
