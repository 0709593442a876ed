"""Coefficients that follow a target, and what of them travels to the next iteration."""

import math

import pytest
from pydantic import ValidationError

from rollbook.components.coefficients import AdaptiveEntropy, AdaptiveKl, start_of
from rollbook.components.losses.base import Loss
from rollbook.core.registry import build
from rollbook.rl.training.controllers import Controllers

KL = AdaptiveKl(start=0.2, target=6.0, horizon=1000)
ENTROPY = AdaptiveEntropy(start=0.002, target=0.5, delta=0.005, max=0.01)


def _loss(**fields: object) -> Loss:
    loss = build("losses", {"name": "dapo", **fields})
    assert isinstance(loss, Loss)
    return loss


@pytest.mark.parametrize(
    ("kl", "want"),
    [(6.0, 0.2), (6.6, 0.2 * 1.01), (5.4, 0.2 * 0.99), (60.0, 0.2 * 1.02), (0.0, 0.2 * 0.98)],
)
def test_the_kl_coefficient_moves_towards_the_target_by_a_fifth_of_the_share_at_most(
    kl: float, want: float
) -> None:
    assert KL.next(0.2, kl, 100) == pytest.approx(want)


def test_more_rollouts_than_the_horizon_allows_never_turn_the_coefficient_negative() -> None:
    assert KL.next(0.2, 0.0, 100_000) == pytest.approx(0.02)
    assert KL.next(0.2, 60.0, 100_000) == pytest.approx(2.0)


@pytest.mark.parametrize("value", ["much", True, -0.1, float("inf"), float("nan"), [0.1], None])
def test_what_is_no_coefficient_gets_one_error(value: object) -> None:
    for name in ("kl_coef", "entropy_coef"):
        with pytest.raises(ValidationError) as caught:
            _loss(**{name: value})
        (line,) = caught.value.errors()
        assert line["loc"] == (name,)
        assert "must be a" in line["msg"]
    with pytest.raises(ValidationError) as caught:
        _loss(kl_coef={"start": 0.1, "target": 0.1, "horizn": 3})
    (line,) = caught.value.errors()
    assert line["loc"] == ("kl_coef", "horizn")


def test_a_coefficient_of_the_recipe_before_is_held_within_the_bounds_of_this_one() -> None:
    state = {"entropy_coef": 0.9, "entropy": 0.1, "reward_kl_coef": 5.0}
    controllers = Controllers(_loss(kl_coef=KL, entropy_coef=ENTROPY), 0.0, state)
    assert (controllers.entropy_coef, controllers.kl_coef) == (0.01, 0.2)


def test_the_entropy_coefficient_rises_at_or_below_the_target_within_its_bounds() -> None:
    assert ENTROPY.next(0.002, 0.5) == pytest.approx(0.007)
    assert ENTROPY.next(0.007, 0.1) == 0.01
    assert ENTROPY.next(0.002, 0.6) == 0.0


def test_the_entropy_coefficient_applies_after_a_step_below_the_target() -> None:
    assert ENTROPY.applied(0.002, None) == 0.0
    assert ENTROPY.applied(0.002, 0.6) == 0.0
    assert ENTROPY.applied(0.002, 0.5) == 0.002


def test_a_start_outside_the_bounds_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"start 0\.5 must lie between min 0\.0 and max 0\.1"):
        AdaptiveEntropy(start=0.5, target=0.5, max=0.1)


def test_the_start_of_a_fixed_coefficient_is_its_value() -> None:
    assert [start_of(each) for each in (0.3, KL, ENTROPY)] == [0.3, 0.2, 0.002]


def test_fixed_coefficients_stay_and_leave_no_state() -> None:
    controllers = Controllers(_loss(kl_coef=0.1, entropy_coef=0.01), 0.0, {"kl_coef": 9.0})
    controllers.after_step(0.1)
    controllers.after_iteration(100.0, 100)
    assert (controllers.kl_coef, controllers.entropy_coef, controllers.state()) == (0.1, 0.01, {})


def test_the_loss_has_the_coefficients_as_they_stand() -> None:
    controllers = Controllers(_loss(kl_coef=KL, entropy_coef=ENTROPY), 0.0, {})
    assert (controllers.loss().kl_coef, controllers.loss().entropy_coef) == (0.2, 0.0)
    controllers.after_step(0.3)
    controllers.after_iteration(60.0, 100)
    loss = controllers.loss()
    assert (loss.kl_coef, loss.entropy_coef) == (pytest.approx(0.2 * 1.02), pytest.approx(0.007))
    state = controllers.state()
    assert state == {"kl_coef": loss.kl_coef, "entropy_coef": loss.entropy_coef, "entropy": 0.3}
    resumed = Controllers(_loss(kl_coef=KL, entropy_coef=ENTROPY), 0.0, state)
    assert resumed.loss() == loss


def test_a_kl_in_the_reward_follows_its_own_target() -> None:
    controllers = Controllers(_loss(), KL, {})
    controllers.after_iteration(0.0, 100)
    assert controllers.state() == {"reward_kl_coef": pytest.approx(0.2 * 0.98)}
    assert controllers.kl_coef == 0.0  # of the loss


def test_a_step_in_which_nothing_was_computed_says_nothing() -> None:
    controllers = Controllers(_loss(kl_coef=KL, entropy_coef=ENTROPY), 0.0, {})
    controllers.after_step(math.nan)
    controllers.after_iteration(math.nan, 100)
    assert controllers.state() == {}


def test_a_recipe_without_the_controller_forgets_its_state() -> None:
    assert Controllers(_loss(), 0.0, {"kl_coef": 0.3, "entropy": 1.0}).state() == {}
