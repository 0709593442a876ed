import math

import numpy as np
import pytest

from rollbook.components.advantages.base import AdvantageInputs, AdvantageOutputs
from rollbook.components.advantages.pairs import Pairs
from rollbook.core.errors import ArtifactError, ConfigError
from tests.builders import advantage_inputs

NAN = math.nan


def made(estimator: Pairs, inputs: AdvantageInputs) -> tuple[list[list[int]], AdvantageOutputs]:
    outputs = estimator(inputs)
    assert outputs.pairs is not None
    pairs: list[list[int]] = outputs.pairs.tolist()
    return pairs, outputs


def test_best_against_worst_and_the_first_of_equals() -> None:
    rewards = [0.8, 0.3, 0.6, 0.1, 1.0, 0.0, 0.0, 1.0, 0.5, 0.5, 0.5, 0.5]
    pairs, outputs = made(Pairs(), advantage_inputs(rewards, [0] * 4 + [1] * 4 + [2] * 4))
    assert pairs == [[0, 3], [4, 5]]
    assert outputs.advantages.tolist() == [1, 0, 0, -1, 1, -1, 0, 0, 0, 0, 0, 0]
    assert outputs.kept is not None
    assert outputs.kept.tolist() == [row in (0, 3, 4, 5) for row in range(12)]
    assert outputs.informative.tolist() == [True] * 8 + [False] * 4


def test_members_of_a_group_need_not_stand_together() -> None:
    pairs, _ = made(Pairs(), advantage_inputs([1.0, 0.0, 0.0, 2.0], [7, 3, 7, 3]))
    assert sorted(pairs) == [[0, 2], [3, 1]]


def test_all_pairs_and_the_share_that_an_answer_wins() -> None:
    pairs, outputs = made(Pairs(pairing="all"), advantage_inputs([0.5, 1.0, 0.0, 0.5]))
    assert pairs == [[0, 2], [1, 0], [1, 2], [1, 3], [3, 2]]
    np.testing.assert_allclose(outputs.advantages, [0.0, 3 / 5, -3 / 5, 0.0])
    assert outputs.kept is not None and outputs.kept.all(), (
        "an answer that wins as often as it loses is trained on"
    )


def test_a_gap_is_at_least_min_gap() -> None:
    inputs = advantage_inputs([0.0, 0.25, 0.75, 1.0])
    assert made(Pairs(pairing="all", min_gap=0.75), inputs)[0] == [[2, 0], [3, 0], [3, 1]]
    assert made(Pairs(min_gap=0.5), advantage_inputs([0.7, 0.2]))[0] == [[0, 1]], "by rounding less"
    pairs, outputs = made(Pairs(min_gap=1.5), inputs)
    assert pairs == [] and not outputs.informative.any()


def test_best_against_a_drawn_one_that_is_worse() -> None:
    draws = np.array([0.0, 0.9, 0.2, 0.1, 0.3, 0.8])
    inputs = advantage_inputs([1.0, 0.5, 0.0, 1.0, 0.7, 0.2])
    pairs, _ = made(Pairs(pairing="best_random"), _with(inputs, draws))
    assert pairs == [[0, 2]], (
        "rows 0 and 3 are not worse, row 2 has the smallest draw of the others"
    )
    assert made(Pairs(pairing="best_random", min_gap=0.4), _with(inputs, 1 - draws))[0] == [[0, 1]]
    assert made(Pairs(), _with(inputs, draws))[0] == [[0, 2]]
    assert made(Pairs(), _with(inputs, 1 - draws))[0] == [[0, 2]], "only best_random draws"
    with pytest.raises(ArtifactError, match="pairs needs random numbers"):
        Pairs(pairing="best_random")(inputs)


def _with(inputs: AdvantageInputs, draws: np.ndarray) -> AdvantageInputs:
    from dataclasses import replace

    return replace(inputs, draws=draws)


@pytest.mark.parametrize("pairing", ["best_worst", "all"])
def test_answers_without_a_reward_or_without_tokens_are_in_no_pair(pairing: str) -> None:
    inputs = advantage_inputs([NAN, 9.0, 1.0, 0.0, -5.0], loss_mask=[[1], [0], [1], [1, 0], []])
    pairs, outputs = made(Pairs.model_validate({"pairing": pairing}), inputs)
    assert pairs == [[2, 3]]
    assert outputs.advantages.tolist() == [0, 0, 1, -1, 0]


@pytest.mark.parametrize("rewards", [[NAN, NAN], [NAN, 1.0], [0.1 + 0.2, 0.3], [2.0, 2.0]])
def test_nothing_to_compare_makes_no_pair(rewards: list[float]) -> None:
    for pairing in ("best_worst", "all"):
        pairs, outputs = made(Pairs.model_validate({"pairing": pairing}), advantage_inputs(rewards))
        assert pairs == []
        assert not outputs.advantages.any() and not outputs.informative.any()


def test_a_penalty_would_choose_among_equals() -> None:
    with pytest.raises(ConfigError, match="choose among equal rewards by their KL"):
        Pairs()(advantage_inputs([1.0, 1.0], penalties=[[0.1], [0.2]]))
