import numpy as np
import pytest

from rollbook.rl.scoring.totals import reward_metrics, weighted_total

NAN = float("nan")


def test_missing_counts_nothing_and_all_missing_is_missing() -> None:
    components = np.array([[1.0, 0.2], [NAN, 0.2], [1.0, NAN], [NAN, NAN]])
    # 1 + 2·0.2; 2·0.2; 1; nothing
    np.testing.assert_array_equal(weighted_total(components, [1.0, 2.0]), [1.4, 0.4, 1.0, NAN])


def test_metrics_leave_missing_values_out() -> None:
    components = np.array([[1.0], [NAN], [0.0], [0.5]])
    metrics = reward_metrics(components[:, 0], components, ["sum"])
    # mean of 1, 0, ½ is ½; squares of ½, ½, 0 sum to ½, over 3 − 1 values: sqrt(¼)
    assert metrics == {
        "rewards/sum/mean": 0.5,
        "rewards/sum/std": 0.5,
        "reward": 0.5,
        "reward_std": 0.5,
    }


def test_too_few_values_have_no_deviation() -> None:
    one = np.array([[0.7]])
    metrics = reward_metrics(one[:, 0], one, ["sum"])
    assert metrics["reward"] == 0.7
    assert np.isnan(metrics["reward_std"])
    assert np.isnan(reward_metrics(np.array([NAN]), np.array([[NAN]]), ["sum"])["reward"])


def test_the_order_of_rows_changes_no_digit() -> None:
    values = np.random.default_rng(0).normal(size=(1000, 2)) * 1e6
    straight = reward_metrics(values[:, 0], values, ["a", "b"])
    assert reward_metrics(values[::-1, 0], values[::-1], ["a", "b"]) == straight


@pytest.mark.parametrize("weights", [[0.0, 0.0], [-1.0, 0.5]])
def test_weights_may_be_zero_or_negative(weights: list[float]) -> None:
    components = np.array([[1.0, 4.0]])
    assert weighted_total(components, weights)[0] == weights[0] + 4 * weights[1]
