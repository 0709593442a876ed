"""What a recipe's parts allow of each other, and what must be measured for it."""

import math
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rollbook.settings.recipe import Recipe
from rollbook.settings.recipe_correction import RolloutCorrection
from rollbook.settings.recipe_sections import PreparePrompts

ENGINE = """from rollbook.components.engines.base import RolloutEngine


class Other(RolloutEngine):
    pass
"""


def _recipe(**stages: Any) -> Recipe:
    return Recipe.model_validate({"score_rollouts": {"rewards": ["numeric_answer"]}, **stages})


def _update(**fields: Any) -> Recipe:
    return _recipe(update_policy=fields)


@pytest.fixture
def other(tmp_path: Path) -> dict[str, str]:
    """An engine that says nothing of its log-probs."""
    (tmp_path / "engine.py").write_text(ENGINE)
    return {"path": f"{tmp_path / 'engine.py'}:Other"}


def test_one_step_without_kl_needs_no_measurement() -> None:
    recipe = _update(optimizer_steps=1)
    assert (recipe.needs_old, recipe.needs_reference) == (False, False)


@pytest.mark.parametrize(
    ("stages", "old", "reference"),
    [
        ({"update_policy": {"optimizer_steps": 2}}, True, False),
        ({"update_policy": {"epochs": 2}}, True, False),
        ({"update_policy": {"epochs": 2, "old_logprobs": "sampling"}}, False, False),
        ({"update_policy": {"top_entropy": 0.2}}, True, False),
        ({"update_policy": {"loss": {"name": "dapo", "kl_coef": 0.1}}}, False, True),
        ({"update_policy": {"rollout_correction": {"max": 3.0}}}, True, False),
        ({"compute_advantages": {"kl_coef": 0.1}}, True, True),
    ],
    ids=str,
)
def test_what_must_be_measured(stages: dict[str, Any], old: bool, reference: bool) -> None:
    recipe = _recipe(**stages)
    assert (recipe.needs_old, recipe.needs_reference) == (old, reference)


def test_correction_is_on_where_the_engine_is_not_the_trainer(other: dict[str, str]) -> None:
    own = {"name": "transformers"}
    for engine, update, corrects in (
        (own, {}, False),
        (own, {"precision": "bfloat16"}, True),
        ({**own, "dtype": "bfloat16"}, {}, True),
        (other, {}, True),
        (other, {"rollout_correction": "off"}, False),
        (other, {"old_logprobs": "sampling"}, False),
        (own, {"rollout_correction": {"max": 2.0}}, True),
    ):
        recipe = _recipe(generate_rollouts={"engine": engine}, update_policy=update)
        assert (recipe.rollout_correction is not None) == corrects, (engine, update)


def test_correction_is_refused_where_the_engines_log_probs_are_renormalised(
    other: dict[str, str],
) -> None:
    cut = {"engine": other, "top_p": 0.9}
    with pytest.raises(ValidationError, match="weigh every token by the mass that was left"):
        _recipe(generate_rollouts=cut)
    _recipe(generate_rollouts=cut, update_policy={"rollout_correction": "off"})
    with pytest.raises(ValidationError, match=r"set update_policy\.old_logprobs: measured"):
        _recipe(generate_rollouts=cut, update_policy={"old_logprobs": "sampling"})


def test_a_difference_is_not_counted_twice() -> None:
    weights = {"weights": "token_truncate", "max": 2.0}
    with pytest.raises(ValidationError, match="would count the difference twice"):
        _update(old_logprobs="sampling", rollout_correction=weights)
    reject = {"weights": None, "reject": [{"statistic": "token_k3", "high": 0.1}]}
    assert _update(old_logprobs="sampling", rollout_correction=reject).needs_old
    with pytest.raises(ValidationError, match="set one of them to 0"):
        _recipe(
            compute_advantages={"kl_coef": 0.1},
            update_policy={"loss": {"name": "dapo", "kl_coef": 0.1}},
        )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max": None}, "weights token_truncate needs `max`, `min` or both"),
        ({"max": 1.0, "min": 1.0}, "min 1.0 must be below max 1.0"),
        ({"weights": None}, "neither weights nor reject is set"),
        ({"weights": None, "normalize": True}, "normalize divides weights"),
    ],
)
def test_bounds_of_a_correction(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        RolloutCorrection.model_validate(fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"statistic": "token_k3", "low": 0.1, "high": 0.5}, "token_k3 is never negative"),
        ({"statistic": "token_k1", "low": 2.0, "high": 1.5}, "leave no ratio between"),
        ({"statistic": "sequence_sum_k1", "high": 0.9}, "bounds 1.11111 and 0.9"),
    ],
)
def test_bounds_of_a_rejection(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        RolloutCorrection.model_validate({"weights": None, "reject": [fields]})


def test_one_answer_per_prompt_is_enough_without_siblings() -> None:
    one = {"group_size": 1, "greedy": True}
    _recipe(generate_rollouts=one, compute_advantages={"estimator": "remax"})
    _recipe(generate_rollouts=one, compute_advantages={"estimator": "reinforce_plus_plus"})
    with pytest.raises(ValidationError, match="estimator group compares an answer with others"):
        _recipe(generate_rollouts=one)


def test_drift_from_renormalised_log_probs_is_refused() -> None:
    loss = {"name": "dapo", "off_policy_threshold": 0.1}
    with pytest.raises(ValidationError, match="every rollout seems to have drifted"):
        _recipe(generate_rollouts={"top_p": 0.9}, update_policy={"loss": loss})


def test_estimators_get_what_they_read() -> None:
    with pytest.raises(ValidationError, match=r"set generate_rollouts\.greedy: true"):
        _recipe(compute_advantages={"estimator": "remax"})
    _recipe(generate_rollouts={"greedy": True}, compute_advantages={"estimator": "remax"})
    with pytest.raises(ValidationError, match="estimator gdpo does not read the total reward"):
        _recipe(compute_advantages={"estimator": "gdpo", "kl_coef": 0.1})
    with pytest.raises(ValidationError, match="reward_clip would do nothing"):
        _recipe(compute_advantages={"estimator": "gdpo", "reward_clip": [0.0, 1.0]})
    with pytest.raises(ValidationError, match="gae reads the values of a critic, and update_pol"):
        _recipe(compute_advantages={"estimator": "gae"})
    with pytest.raises(ValidationError, match="learns values that estimator group does not read"):
        _recipe(update_policy={"critic": "head"})
    ppo = _recipe(
        generate_rollouts={"group_size": 1},
        compute_advantages={"estimator": "gae"},
        update_policy={
            "critic": {"name": "head", "learning_rate": 0.1},
            "old_logprobs": "sampling",  # values are measured beside the policy whatever the ratio needs
        },
    )
    assert ppo.needs_old and ppo.measured_critic is not None
    assert ppo.measured_critic.learning_rate is None
    assert _recipe().measured_critic is None


def test_a_reward_clip_is_a_range() -> None:
    with pytest.raises(ValidationError, match=r"reward_clip must be \[lowest, highest\]"):
        _recipe(compute_advantages={"reward_clip": [1.0, -1.0]})


@pytest.mark.parametrize("value", [False, None, "on", 2.0])
def test_what_is_no_correction_gets_one_error(value: object) -> None:
    with pytest.raises(ValidationError) as caught:
        _update(rollout_correction=value)
    (line,) = caught.value.errors()
    assert line["loc"] == ("update_policy", "rollout_correction")
    assert "must be auto, off, or {weights" in line["msg"]


@pytest.mark.parametrize("name", ["learning_rate", "weight_decay", "adam_epsilon", "max_grad_norm"])
def test_numbers_are_finite(name: str) -> None:
    for value in (math.inf, math.nan):
        with pytest.raises(ValidationError):
            _update(**{name: value})


def test_prompts_drawn_and_asked() -> None:
    plain = PreparePrompts(prompts_per_iteration=100)
    assert (plain.prompts_asked, plain.prompts_drawn) == (100, 100)
    more = PreparePrompts(prompts_per_iteration=100, oversample=1.555)
    assert (more.prompts_asked, more.prompts_drawn) == (156, 156)
    choosy = more.model_copy(update={"prefer": "informative"})
    assert (choosy.prompts_asked, choosy.prompts_drawn) == (156, 312)
    assert PreparePrompts(prompts_per_iteration=100, oversample=1.1).prompts_asked == 110
    for wrong in (0.5, math.inf, 1e300):
        with pytest.raises(ValidationError):
            PreparePrompts(oversample=wrong)
