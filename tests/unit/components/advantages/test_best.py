import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from rollbook.components.advantages.best import Best
from rollbook.core.errors import ArtifactError
from tests.builders import advantage_inputs

GROUPS = [0, 0, 0, 0, 1, 1, 1, 1]
REWARDS = [0.5, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]


def chosen(
    rewards: list[float] = REWARDS, texts: list[int] | None = None, **options: Any
) -> list[int]:
    groups = (GROUPS * len(rewards))[: len(rewards)]
    inputs = advantage_inputs(rewards, groups)
    if texts is not None:
        inputs = replace(inputs, texts=np.array(texts))
    outputs = Best(**options)(inputs)
    assert outputs.kept is not None
    np.testing.assert_array_equal(outputs.advantages, outputs.kept)
    rows: list[int] = np.flatnonzero(outputs.kept).tolist()
    assert set(np.flatnonzero(outputs.informative)) == {
        row for row, group in enumerate(groups) if group in {groups[each] for each in rows}
    }
    return rows


def test_the_best_of_each_group_and_the_first_of_equals() -> None:
    assert chosen() == [1], "a group of equal rewards has no best"
    assert chosen(keep=2) == [1, 2]
    assert chosen(keep=3) == [0, 1, 2]


def test_a_bound_says_what_is_right() -> None:
    assert chosen(keep=None, min_reward=1.0) == [1, 2]
    assert chosen(keep=1, min_reward=0.0) == [1, 4], (
        "with a bound, a group that is right throughout counts"
    )
    assert chosen(keep=None, min_reward=2.0) == []
    assert chosen([0.7 + 0.2 + 0.1, 1 - 1e-6, 0.0, 0.0], keep=None, min_reward=1.0) == [0], (
        "rounding leaves nothing out"
    )


def test_equal_texts_count_once_in_a_group() -> None:
    texts = [5, 7, 7, 5, 7, 7, 8, 8]
    assert chosen(texts=texts, keep=None, min_reward=0.0, distinct=True) == [0, 1, 4, 6]
    assert chosen(texts=texts, keep=2, distinct=True) == [0, 1]
    with pytest.raises(ArtifactError, match="best needs the texts"):
        chosen(distinct=True)


def test_missing_rewards_and_empty_answers_are_never_chosen() -> None:
    inputs = advantage_inputs([math.nan, 3.0, 2.0, 1.0], loss_mask=[[1], [0], [1], [1]])
    outputs = Best(keep=None, min_reward=0.0)(inputs)
    assert outputs.advantages.tolist() == [0, 0, 1, 1]
    assert Best()(inputs).advantages.tolist() == [0, 0, 1, 0]


def test_everything_is_not_a_choice() -> None:
    with pytest.raises(ValidationError, match="set min_reward, or keep: 1"):
        Best(keep=None)


def test_more_than_one_answer_without_a_bound_is_pointed_out() -> None:
    assert "the 2 best of a group are imitated" in Best(name="best", keep=2).cautions()[0]
    for settings in ({}, {"keep": 2, "min_reward": 1.0}, {"keep": None, "min_reward": 1.0}):
        assert Best(name="best", **settings).cautions() == []
