"""Estimator and loss of a recipe must agree on what is handed over, and masks must leave pairs whole."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from rollbook.components.losses.base import Loss
from rollbook.components.signals import ESTIMATORS, LOSSES
from rollbook.core.registry import build, menu
from rollbook.rl.recipe_numbers import example_advantages, pushes, token_weights
from rollbook.settings.recipe import Recipe
from rollbook.settings.recipe_words import differences

PAIRS = {"estimator": "pairs"}
BEST = {"estimator": "best"}


def recipe(compute: dict[str, Any], update: dict[str, Any], **stages: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "score_rollouts": {"rewards": ["numeric_answer"]},
            "compute_advantages": compute,
            "update_policy": update,
            **stages,
        }
    )


@pytest.mark.parametrize(
    ("compute", "loss", "said"),
    [
        (
            {},
            "dpo",
            "loss dpo trains on pairs, and estimator group makes advantages; .* such as pairs",
        ),
        (BEST, "dpo", "estimator best makes choices"),
        (
            PAIRS,
            "dapo",
            "loss dapo trains on advantages or choices, and estimator pairs makes pairs.* such as dpo",
        ),
        (PAIRS, "sft", "loss sft trains on choices"),
        (
            {},
            "sft",
            "take an estimator that makes choices, such as best, or a loss for advantages, such as dapo",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(
    compute: dict[str, Any], loss: str, said: str
) -> None:
    with pytest.raises(ValidationError, match=said):
        recipe(compute, {"loss": loss})


def test_what_goes_together() -> None:
    assert recipe(PAIRS, {"loss": "dpo"}).needs_reference
    assert not recipe(BEST, {"loss": "sft"}).needs_reference
    assert not recipe(BEST, {"loss": "gpg"}).needs_old


@pytest.mark.parametrize(
    ("compute", "update", "said"),
    [
        (PAIRS, {"loss": "dpo", "mask_truncated": True}, "mask_truncated would empty one of them"),
        (PAIRS, {"loss": "dpo", "top_entropy": 0.2}, "leave update_policy.top_entropy out"),
        (PAIRS, {"loss": "dpo", "rollout_correction": {"max": 2.0}}, "there is nothing to correct"),
        (BEST, {"loss": "sft", "rollout_correction": {"max": 2.0}}, "there is nothing to correct"),
        ({**PAIRS, "kl_coef": 0.1}, {"loss": "dpo"}, "choose among equal answers by their KL"),
        ({**BEST, "kl_coef": 0.1}, {"loss": "sft"}, "choose among equal answers by their KL"),
    ],
)
def test_settings_that_spoil_a_choice_are_refused(
    compute: dict[str, Any], update: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValidationError, match=said):
        recipe(compute, update)


def test_nothing_is_corrected_by_itself_where_it_does_not_matter_who_wrote() -> None:
    other = {"precision": "bfloat16"}  # the engine computes in float32
    assert recipe({}, other).rollout_correction is not None
    assert recipe(PAIRS, {"loss": "dpo", **other}).rollout_correction is None
    assert recipe(BEST, {"loss": "sft", **other}).rollout_correction is None


def test_the_best_of_one_answer_needs_a_bound() -> None:
    alone: dict[str, Any] = {"generate_rollouts": {"group_size": 1}}
    with pytest.raises(ValidationError, match="group_size must be at least 2: estimator best"):
        recipe(BEST, {"loss": "sft"}, **alone)
    recipe({"estimator": {"name": "best", "min_reward": 1.0}}, {"loss": "sft"}, **alone)


def test_what_is_suggested_exists_and_fits() -> None:
    for signal, name in ESTIMATORS.items():
        assert build("advantages", name).makes == signal  # type: ignore[attr-defined]
    for signal, name in LOSSES.items():
        loss = build("losses", name)
        assert isinstance(loss, Loss) and signal in loss.takes
    assert {"pairs", "best"} <= set(menu("advantages"))


def test_in_numbers() -> None:
    dpo, grpo = recipe(PAIRS, {"loss": "dpo"}), recipe({}, {"loss": "grpo"})
    short, long = token_weights(dpo)
    assert short == pytest.approx(long) == pytest.approx(0.05)
    assert len(pushes(grpo, 1.0)) == 6
    assert example_advantages(dpo, [0.8, 0.6, 0.3, 0.3]) == [1, 0, -1, 0]
    drawn = recipe({"estimator": {"name": "pairs", "pairing": "best_random"}}, {"loss": "dpo"})
    assert example_advantages(drawn, [0.8, 0.3, 0.6, 0.3]) == [1, -1, 0, 0]
    distinct = {"estimator": {"name": "best", "distinct": True}}
    assert example_advantages(recipe(distinct, {"loss": "sft"}), [0.0, 1.0]) == [0, 1]
    places = {item.place for item in differences(grpo, dpo)}
    assert {
        "compute_advantages.estimator",
        "update_policy.loss",
        "update_policy.loss.beta",
    } <= places
