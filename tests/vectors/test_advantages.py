"""Advantages, KL in the reward, its coefficient and the value loss, recorded from TRL, verl, scipy and AgentEvolver."""

from __future__ import annotations

from typing import Any

import pytest

from rollbook.core.registry import menu
from rollbook.settings.recipe_sections import ComputeAdvantages
from tests.vectors import (
    adapters_advantages,
    adapters_gae,
    adapters_process_supervision,
    adapters_value_loss,
)
from tests.vectors.__main__ import run_case
from tests.vectors.cases import Unsupported, load_cases

CATEGORIES = (
    *adapters_advantages.CATEGORIES,
    *adapters_process_supervision.CATEGORIES,
    *adapters_gae.CATEGORIES,
    *adapters_value_loss.CATEGORIES,
)


def _cases() -> list[Any]:
    return [
        pytest.param(category, case, id=case["id"])
        for category in CATEGORIES
        for case in load_cases(category)
    ]


def _case(category: str, name: str, **changes: Any) -> dict[str, Any]:
    """A recorded case with some of its options changed."""
    case = next(case for case in load_cases(category) if case["id"] == name)
    return {**case, "config": {**case["config"], **changes}}


@pytest.mark.parametrize(("category", "case"), _cases())
def test_recorded_case(category: str, case: dict[str, Any]) -> None:
    assert run_case(category, case) is None


def test_a_wrong_number_is_noticed() -> None:
    wrong = _case("advantages", "adv-two-groups", std_ddof=0)
    assert "8 of 8 numbers differ" in (run_case("advantages", wrong) or "")
    case = _case("advantages", "adv-two-groups")
    metrics = {**case["expected"]["metrics"], "reward_std": 5.0}
    wrong = {**case, "expected": {**case["expected"], "metrics": metrics}}
    assert "reward_std" in (run_case("advantages", wrong) or "")


@pytest.mark.parametrize(
    ("category", "name", "changes"),
    [
        ("advantages", "rloo-kl-reward", {"beta": 0.2}),
        ("advantages", "rloo-clip-normalize", {"reward_clip_range": [-2.0, 3.0]}),
        ("advantages", "rloo-clip-normalize", {"normalize_advantages": False}),
        ("advantages", "adv-gdpo", {"reward_weights": [0.5, 0.5]}),
        ("advantages", "adv-gdpo", {"multi_objective_aggregation": "sum_then_normalize"}),
        ("advantages_verl", "verl-rf++", {"gamma": 1.0}),
        ("advantages_verl", "verl-passk", {"norm_by_std": False}),
        ("advantages_verl", "verl-gdpo", {"reward_weights": [0.5, 0.5]}),
        ("advantages_verl", "verl-remax", {"reward_baselines": [0.5, 0.4, 0.2]}),
        ("process_supervision", "process-basic", {"std_ddof": 1}),
        ("process_supervision", "process-basic", {"eps": 0.1}),
        ("gae", "gae-dense-gamma", {"lam": 1.0}),
        ("gae", "gae-dense-gamma", {"gamma": 1.0}),
        ("gae", "kl-reward-k1", {"kl_estimator": "k3"}),
        ("gae", "kl-controller", {"horizon": 1000}),
        ("value_loss", "value-token-mean", {"cliprange_value": 0.4}),
        ("value_loss", "value-token-mean", {"loss_agg_mode": "seq-mean-token-mean"}),
    ],
)
def test_every_option_reaches_the_estimator(
    category: str, name: str, changes: dict[str, Any]
) -> None:
    assert "differ" in (run_case(category, _case(category, name, **changes)) or "")


@pytest.mark.parametrize("name", menu("advantages"))
def test_estimators_are_those_that_params_yaml_builds(name: str) -> None:
    settings = ComputeAdvantages.model_validate({"estimator": {"name": name}})
    assert type(settings.estimator) is type(adapters_advantages.estimator_of(name))


@pytest.mark.parametrize(
    ("category", "impl", "estimator"),
    [
        ("advantages", "trl.ppo", "group"),
        ("advantages_verl", "verl.other", "optimal_token_baseline"),
        ("gae", "verl.other", "gae"),
        ("value_loss", "verl.other", "gae"),
    ],
)
def test_what_is_not_known_is_not_guessed(category: str, impl: str, estimator: str) -> None:
    first = load_cases(category)[0]
    case = {**first, "impl": impl, "config": {**first["config"], "estimator": estimator}}
    with pytest.raises(Unsupported):
        run_case(category, case)
