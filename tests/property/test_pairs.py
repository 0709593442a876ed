"""Pairs of any rewards: of one group, the chosen one better, and as many as there should be."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.components.advantages.pairs import Pairing, Pairs
from tests.builders import advantage_inputs

REWARD = st.one_of(st.just(math.nan), st.sampled_from([0.0, 0.5, 1.0]), st.floats(-4, 4, width=16))
ROW = st.tuples(REWARD, st.integers(0, 3), st.integers(0, 2))


@given(
    rows=st.lists(ROW, min_size=1, max_size=16),
    pairing=st.sampled_from(["best_worst", "all", "best_random"]),
    gap=st.sampled_from([0.0, 0.5, 2.0]),
)
@settings(deadline=None, max_examples=150)
def test_pairs_are_of_one_group_and_the_chosen_is_better(
    rows: list[tuple[float, int, int]], pairing: Pairing, gap: float
) -> None:
    rewards, groups, tokens = (list(column) for column in zip(*rows, strict=True))
    inputs = replace(
        advantage_inputs(rewards, groups, loss_mask=[[1] * count for count in tokens]),
        draws=np.random.default_rng(0).random(len(rows)),
    )
    outputs = Pairs(pairing=pairing, min_gap=gap)(inputs)
    assert outputs.pairs is not None and outputs.kept is not None
    pairs = outputs.pairs.tolist()
    assert len({tuple(pair) for pair in pairs}) == len(pairs)
    for chosen, rejected in pairs:
        assert groups[chosen] == groups[rejected]
        assert tokens[chosen] and tokens[rejected]
        assert rewards[chosen] > rewards[rejected]
        assert rewards[chosen] - rewards[rejected] >= gap
    wanted = 0
    for group in set(groups):
        usable = [r for r, g, t in rows if g == group and t and not math.isnan(r)]
        bound = max(map(abs, usable), default=0.0) * 1e-9
        gaps = [a - b for a in usable for b in usable if a - b > bound and a - b >= gap]
        wanted += len(gaps) if pairing == "all" else bool(gaps)
        if pairing == "best_worst" and gaps:
            assert max(usable) - min(usable) in [
                rewards[c] - rewards[r] for c, r in pairs if groups[c] == group
            ]
    assert len(pairs) == wanted
    assert set(np.flatnonzero(outputs.kept)) == {row for pair in pairs for row in pair}
    assert outputs.advantages.sum() == 0 or abs(outputs.advantages.sum()) < 1e-12
