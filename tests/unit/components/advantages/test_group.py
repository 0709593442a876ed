import numpy as np
import pytest
from pydantic import ValidationError

from rollbook.components.advantages.base import AdvantageEstimator, AdvantageOutputs
from rollbook.core.registry import build
from tests.builders import advantage_inputs

NAN = float("nan")


def estimate(
    rewards: list[float], groups: list[int] | None = None, **options: object
) -> AdvantageOutputs:
    estimator = build("advantages", {"name": "group", **options})
    assert isinstance(estimator, AdvantageEstimator)
    return estimator(advantage_inputs(rewards, groups))


def test_worked_example() -> None:
    # mean 0.5; squares .09 .04 .01 .04 sum to .18, over 4: sqrt(.045) = 0.2121; .3/.2122 = 1.4135, …
    got = estimate([0.8, 0.3, 0.6, 0.3])
    assert [f"{value:+.2f}" for value in got.advantages] == ["+1.41", "-0.94", "+0.47", "-0.94"]
    np.testing.assert_allclose(got.advantages[0], 0.3 / (np.sqrt(0.045) + 1e-4), rtol=1e-12)
    np.testing.assert_allclose(got.group_mean, 0.5)
    np.testing.assert_allclose(got.group_std, np.sqrt(0.045))
    assert got.informative.all()


def test_sample_deviation() -> None:
    # sqrt(.18 / 3) = 0.244949; 0.3 / 0.245049 = 1.224245
    got = estimate([0.8, 0.3, 0.6, 0.3], std_ddof=1)
    np.testing.assert_allclose(got.advantages[0], 1.2242450754, rtol=1e-9)


def test_groups_are_told_apart_by_label_wherever_they_stand() -> None:
    # group 7: 1 and 0, mean ½, deviation ½; group −3: 5 and 9, mean 7, deviation 2
    got = estimate([1.0, 5.0, 0.0, 9.0], [7, -3, 7, -3], eps=0.0)
    np.testing.assert_array_equal(got.advantages, [1.0, -1.0, -1.0, 1.0])
    np.testing.assert_array_equal(got.group_mean, [0.5, 7.0, 0.5, 7.0])
    np.testing.assert_array_equal(got.group_std, [0.5, 2.0, 0.5, 2.0])


def test_no_scale_only_centres() -> None:
    got = estimate([1.0, 5.0, 0.0, 9.0], [7, -3, 7, -3], scale="none")
    np.testing.assert_array_equal(got.advantages, [0.5, -2.0, -0.5, 2.0])
    np.testing.assert_array_equal(got.group_std, [0.5, 2.0, 0.5, 2.0])  # what it would have been


def test_batch_scale_divides_by_the_deviation_of_raw_rewards() -> None:
    # raw 1 5 0 9: mean 3.75, squares 7.5625 1.5625 14.0625 27.5625 sum to 50.75; population: 12.6875
    got = estimate([1.0, 5.0, 0.0, 9.0], [7, -3, 7, -3], scale="batch", eps=0.0)
    np.testing.assert_allclose(
        got.advantages, np.array([0.5, -2.0, -0.5, 2.0]) / np.sqrt(12.6875), rtol=1e-12
    )
    np.testing.assert_allclose(got.group_std, np.sqrt(12.6875))
    sample = estimate([1.0, 5.0, 0.0, 9.0], [7, -3, 7, -3], scale="batch", std_ddof=1)
    np.testing.assert_allclose(sample.group_std, np.sqrt(50.75 / 3))


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("ddof", [0, 1])
def test_equal_up_to_rounding_is_exactly_equal(scale: str, ddof: int) -> None:
    # 0.1 + 0.2 + 0.3 and 0.3 + 0.2 + 0.1 differ in the last digit
    noisy = [0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1, 0.6, 0.6]
    assert len(set(noisy)) > 1
    got = estimate([*noisy, 0.0, 1.0], [0, 0, 0, 0, 1, 1], scale=scale, std_ddof=ddof, eps=0.0)
    np.testing.assert_array_equal(got.advantages[:4], 0.0)
    assert not got.informative[:4].any()
    assert got.informative[4:].all()
    if scale != "batch":
        np.testing.assert_array_equal(got.group_std[:4], 0.0)


def test_a_small_true_spread_is_kept_and_made_harmless_by_eps() -> None:
    got = estimate([0.5, 0.500001, 0.5, 0.499999])
    # deviation sqrt(½)·1e-6: 1e-6 / (7.07e-7 + 1e-4) = 0.00993, not 1.41
    np.testing.assert_allclose(got.advantages[1], 1e-6 / (np.sqrt(0.5) * 1e-6 + 1e-4), rtol=1e-6)
    assert got.informative.all()


def test_small_rewards_are_not_taken_for_rounding() -> None:
    got = estimate([0.0, 1e-12], eps=0.0)
    np.testing.assert_allclose(got.advantages, [-1.0, 1.0])


def test_the_range_of_float64_is_no_bound() -> None:
    for size in (1e-300, 1e300):
        got = estimate([0.0, size], eps=0.0)
        np.testing.assert_allclose(got.advantages, [-1.0, 1.0])


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_missing_rewards_are_left_out(scale: str) -> None:
    full = estimate([1.0, 0.0, 0.0], scale=scale)
    got = estimate([1.0, NAN, 0.0, 0.0], scale=scale)
    np.testing.assert_array_equal(got.advantages, np.insert(full.advantages, 1, 0.0))
    assert got.group_mean[1] == full.group_mean[0]


@pytest.mark.parametrize("ddof", [0, 1])
def test_one_reward_or_none_is_no_baseline(ddof: int) -> None:
    got = estimate([NAN, 0.7, NAN, NAN, 0.3], [0, 0, 1, 1, 2], std_ddof=ddof)
    np.testing.assert_array_equal(got.advantages, 0.0)
    np.testing.assert_array_equal(got.group_mean, [0.7, 0.7, NAN, NAN, 0.3])
    np.testing.assert_array_equal(got.group_std, [NAN, NAN, NAN, NAN, 0.0])
    assert not got.informative.any()


def test_nothing_in_nothing_out() -> None:
    for scale in ("group", "batch", "none"):
        assert estimate([], scale=scale).advantages.shape == (0,)


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"scale": "std"}, "scale"),
        ({"std_ddof": 2}, "std_ddof"),
        ({"eps": -1e-4}, "eps"),
        ({"epsilon": 1e-4}, "epsilon"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], place: str) -> None:
    with pytest.raises(ValidationError) as caught:
        build("advantages", {"name": "group", **options})
    assert caught.value.errors()[0]["loc"] == (place,)
