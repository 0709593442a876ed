"""Which recipes may follow each other where adapters are trained."""

from typing import Any

import pytest

from rollbook.project.check import warnings_for
from rollbook.settings.params import parse_params
from tests.unit.settings.test_params import problems, shipped


def chain(*loras: dict[str, Any] | None) -> dict[str, Any]:
    """Settings whose n-th iteration has the n-th adapter, None for none."""
    raw, previous = shipped(), "i0000"
    raw["iterations"] = {}
    for number, lora in enumerate(loras, start=1):
        recipe, key = f"r{number}", f"i{number:04}"
        raw["recipes"][recipe] = {"extends": "grpo", "update_policy": {"lora": lora}}
        raw["iterations"][key] = {"previous": previous, "recipe": recipe, "reference": "i0000"}
        previous = key
    return raw


@pytest.mark.parametrize(
    "loras",
    [
        [None, None],
        [{}, {}],
        [{"rank": 8}, {"rank": 8, "alpha": 32, "target_modules": "all-linear"}],
    ],
)
def test_chains_that_go_on(loras: list[dict[str, Any] | None]) -> None:
    parse_params(chain(*loras))


@pytest.mark.parametrize(
    ("loras", "said"),
    [
        ([None, {}], "trains an adapter, which begins on i0000, and i0001 has trained all weights"),
        ([{}, None], "trains all weights, and i0001 is an adapter on i0000"),
        ([{"rank": 8}, {"rank": 4}], "has another `lora` than i0001"),
        ([{}, {"target_modules": ["q_proj"]}], "has another `lora` than i0001"),
    ],
)
def test_chains_that_do_not(loras: list[dict[str, Any] | None], said: str) -> None:
    [problem] = problems(chain(*loras))
    assert problem.startswith("iterations.i0002.recipe: 'r2' ")
    assert said in problem
    assert "`rollbook export i0001 DIR`" in problem


def test_a_branch_of_the_base_may_train_one_beside_a_chain_that_does_not() -> None:
    raw = chain(None, None)
    raw["recipes"]["adapter"] = {"extends": "grpo", "update_policy": {"lora": {"rank": 2}}}
    raw["iterations"]["adapter0001"] = {
        "previous": "i0000",
        "recipe": "adapter",
        "reference": "i0000",
    }
    parse_params(raw)


@pytest.mark.parametrize(
    "lora",
    [
        {"rank": 0},
        {"alpha": 0},
        {"target_modules": []},
        {"target_modules": "most"},
        {"dropout": 0.1},
    ],
)
def test_impossible_adapters(lora: dict[str, Any]) -> None:
    found = problems(chain(lora))
    assert found and all(problem.startswith("recipes.r1.update_policy.lora.") for problem in found)


@pytest.mark.parametrize(("lora", "warned"), [({}, False), (None, True)])
def test_learning_rates_are_judged_by_what_is_trained(
    lora: dict[str, Any] | None, warned: bool
) -> None:
    raw = chain(lora)
    raw["policy"] = {"base": {"name": "tiny", "hidden_size": 2048, "layers": 8}}
    assert any("learning_rate" in each for each in warnings_for(parse_params(raw))) == warned
