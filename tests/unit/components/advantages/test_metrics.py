import numpy as np

from rollbook.components.advantages.base import AdvantageOutputs
from rollbook.components.advantages.metrics import advantage_metrics
from tests.unit.components.advantages.test_group import NAN, estimate


def metrics(rewards: list[float], groups: list[int]) -> dict[str, float]:
    return advantage_metrics(
        estimate(rewards, groups, eps=0.0), np.array(rewards), np.array(groups)
    )


def test_shares_of_rows_and_of_groups() -> None:
    # group 0 solved (3 rows), group 1 informative (1, 0: deviation ½), group 2 unsolved, group 3 flat in between
    got = metrics([1, 1, 1, 1, 0, 0, 0, 0.5, 0.5], [0, 0, 0, 1, 1, 2, 2, 3, 3])
    assert got["frac_reward_zero_std"] == 7 / 9
    assert got["groups"] == 4
    assert got["informative_groups"] == 1
    assert got["informative_groups_share"] == 0.25
    assert got["solved_groups_share"] == 0.25
    assert got["unsolved_groups_share"] == 0.25
    assert got["reward_std_within_groups"] == 0.5 / 4
    # advantages: seven zeros, 1 and −1; their mean square is 2/9
    assert got["advantages/mean"] == 0.0
    np.testing.assert_allclose(got["advantages/std"], np.sqrt(2 / 9))
    assert got["advantages/absmax"] == 1.0


def test_a_batch_with_one_reward_does_not_say_which_end_it_is() -> None:
    got = metrics([1, 1, 1, 1], [0, 0, 1, 1])
    assert got["frac_reward_zero_std"] == 1.0
    assert np.isnan(got["solved_groups_share"])
    assert np.isnan(got["unsolved_groups_share"])


def test_an_undefined_deviation_is_not_zero() -> None:
    got = metrics([NAN, 0.7, NAN, NAN, 0, 0], [0, 0, 1, 1, 2, 2])
    assert got["frac_reward_zero_std"] == 2 / 6
    assert got["reward_std_within_groups"] == 0.0  # over the groups that have one
    assert got["informative_groups"] == 0
    assert got["solved_groups_share"] == 1 / 3  # its one known answer is the best of the batch
    assert got["unsolved_groups_share"] == 1 / 3


def test_no_rows_no_metrics() -> None:
    empty = np.empty(0)
    outputs = AdvantageOutputs(empty, empty, empty, np.empty(0, dtype=bool))
    assert advantage_metrics(outputs, empty, np.empty(0, dtype=np.int64)) == {}
