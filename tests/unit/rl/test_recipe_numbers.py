from typing import Any

import numpy as np
import pytest

from rollbook.rl.recipe_numbers import GROUPS, RATIOS, example_advantages, pushes, token_weights
from rollbook.settings.recipe import Recipe
from rollbook.settings.recipe_words import differences


def _recipe(loss: Any = "dapo", estimator: Any = "group", **sections: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "score_rollouts": {"rewards": ["numeric_answer"]},
            "compute_advantages": {"estimator": estimator},
            **sections,
            "update_policy": {"loss": loss, **sections.get("update_policy", {})},
        }
    )


def test_a_recipe_does_not_differ_from_itself() -> None:
    assert differences(_recipe(), _recipe()) == []


def test_settings_with_their_meanings() -> None:
    changed = _recipe(
        {"name": "dapo", "clip_high": 0.2},
        update_policy={"rollout_correction": {"weights": "token_truncate", "max": 3.0}},
        generate_rollouts={"group_size": 4},
    )
    found = {item.place: item for item in differences(_recipe(), changed)}
    assert list(found) == [
        "generate_rollouts.group_size",
        "update_policy.loss.clip_high",
        "update_policy.rollout_correction",
    ]
    assert found["update_policy.loss.clip_high"].values == ("0.28", "0.2")
    assert "1 + clip_high" in found["update_policy.loss.clip_high"].meaning
    assert found["update_policy.rollout_correction"].values[1].startswith("{weights: token_trunc")
    assert [item.is_size for item in found.values()] == [True, False, False]


def test_another_component_is_explained_and_its_own_fields_stand_below() -> None:
    found = {
        item.place: item
        for item in differences(_recipe("dapo"), _recipe({"name": "cispo", "cap": 5.0}))
    }
    loss = found["update_policy.loss"]
    assert loss.values == ("dapo", "cispo") and " | " in loss.meaning
    assert found["update_policy.loss.cap"].values == ("–", "5.0")
    assert found["update_policy.loss.clip_low"].values == ("0.2", "–")
    assert next(iter(found)) == "update_policy.loss", "what it is stands above what it has"


def test_a_reward_of_one_recipe_only() -> None:
    rewards = ["numeric_answer", {"name": "repetition_penalty", "ngram_size": 2}]
    other = _recipe(score_rollouts={"rewards": rewards})
    found = {item.place: item.values for item in differences(_recipe(), other)}
    place = "score_rollouts.rewards.repetition_penalty"
    assert found[place] == ("–", "repetition_penalty")
    assert found[f"{place}.ngram_size"] == ("–", "2")


def test_advantages_of_the_example_groups() -> None:
    assert example_advantages(_recipe(), GROUPS[0]) == pytest.approx(
        [1.41, -0.94, 0.47, -0.94], abs=0.01
    )
    leave_one_out = example_advantages(_recipe(estimator="leave_one_out"), GROUPS[1])
    assert leave_one_out == pytest.approx([1.0] + [-1 / 7] * 7)
    clipped = _recipe(
        compute_advantages={
            "estimator": {"name": "group", "scale": "none"},
            "reward_clip": [0.0, 0.5],
        }
    )
    assert example_advantages(clipped, (1.0, 0.0)) == pytest.approx([0.25, -0.25])
    remax = _recipe(estimator="remax", generate_rollouts={"greedy": True})
    assert example_advantages(remax, GROUPS[0]) == "remax reads the reward of a greedy answer"


@pytest.mark.parametrize(
    ("loss", "want"),
    [
        ("dapo", (1 / 110, 1 / 110)),
        ("grpo", (1 / 20, 1 / 200)),
        ("dr_grpo", (1 / 1024, 1 / 1024)),
        ("gspo", (1 / 20, 1 / 200)),
        ("rloo", (1 / 2, 1 / 2)),
    ],
)
def test_the_weight_of_a_token(loss: str, want: tuple[float, float]) -> None:
    recipe = _recipe(loss, generate_rollouts={"max_completion_tokens": 512})
    assert token_weights(recipe) == pytest.approx(want)


def test_pushes_follow_the_formulas() -> None:
    ratios = np.array(RATIOS)
    dapo = _recipe({"name": "dapo", "delta": 1.4})
    assert pushes(dapo, 1.0) == pytest.approx(np.where(ratios > 1.28, 0, ratios))
    held = (ratios < 0.8) | (ratios > 1.4)
    assert pushes(dapo, -1.0) == pytest.approx(np.where(held, 0, -ratios))
    cispo = _recipe({"name": "cispo", "cap": 2.0})
    assert pushes(cispo, -1.0) == pytest.approx(-np.minimum(ratios, 2))
    with_kl = _recipe({"name": "dapo", "kl_coef": 0.1, "entropy_coef": 0.01})
    assert pushes(with_kl, 1.0) == pytest.approx(pushes(_recipe(), 1.0))
