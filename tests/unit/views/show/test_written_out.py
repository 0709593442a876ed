"""What is written out comes to the number that the estimator gives, for every estimator that has a writer."""

import math
import re
from typing import Any

import numpy as np
import pytest

from rollbook.components.advantages.base import (
    AdvantageEstimator,
    AdvantageInputs,
    AdvantageOutputs,
    Arithmetic,
)
from rollbook.components.advantages.moments import moments_of
from rollbook.core.field_docs import formula_of
from rollbook.core.registry import build, menu
from rollbook.views.show.arithmetic import written_out
from tests.builders import advantage_inputs

REWARDS = [0.8, 0.3, 0.6, 0.3, 1.0, 0.0, 0.0, math.nan, 1.0, 1.0, 1.0, 1.0, -0.5, 0.25, 0.5, 1.5]
GROUPS = [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
LENGTHS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]
SPECS: list[dict[str, Any]] = [
    {"name": "group"},
    {"name": "group", "std_ddof": 1, "eps": 1e-6},
    {"name": "group", "scale": "batch"},
    {"name": "group", "scale": "none"},
    {"name": "leave_one_out"},
    {"name": "leave_one_out", "normalize": True, "std_ddof": 1},
    {"name": "max_rl"},
    {"name": "gpg"},
    {"name": "opo"},
    {"name": "pass_at_k"},
    {"name": "pass_at_k", "scale": "none"},
    {"name": "remax"},
    {"name": "reinforce_plus_plus_baseline"},
    {"name": "reinforce_plus_plus"},
    {"name": "reinforce_plus_plus", "gamma": 0.9},
    {"name": "gdpo"},
    {"name": "gdpo", "whiten": "token", "std_ddof": 1},
    {"name": "process_supervision"},
    {"name": "pairs"},
    {"name": "pairs", "pairing": "all", "min_gap": 0.3},
    {"name": "best"},
    {"name": "best", "keep": 2, "min_reward": 0.5},
]


def seen(rewards: list[float] = REWARDS) -> AdvantageInputs:
    greedy = [0.5, 1.0, 1.0, math.nan]
    return advantage_inputs(
        rewards,
        GROUPS,
        loss_mask=[[1] * length for length in LENGTHS],
        greedy_rewards=[greedy[group] for group in GROUPS],
        components=[[reward, float(place % 3)] for place, reward in enumerate(rewards)],
        weights=[1.0, 0.5],
        steps=[
            [(end, reward if end else 0.25) for end in sorted({0, length - 1})]
            for reward, length in zip(rewards, LENGTHS, strict=True)
        ],
    )


def estimator_of(spec: dict[str, Any]) -> AdvantageEstimator:
    made = build("advantages", spec)
    assert isinstance(made, AdvantageEstimator)
    return made


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_it_comes_to_the_estimators_number(spec: dict[str, Any]) -> None:
    estimator, inputs = estimator_of(spec), seen()
    advantages = estimator(inputs).advantages
    assert np.count_nonzero(advantages) >= 3
    for row, advantage in enumerate(advantages):
        lines = written_out(estimator, inputs, row, advantage)
        assert lines, f"nothing is written out for row {row}"
        last = re.findall(r"= ([+-]\d[\d.e+-]*)", lines[-1])
        if last:
            assert float(last[-1]) == pytest.approx(advantage, rel=1e-5, abs=1e-9)
        else:
            assert advantage == 0 and lines[-1].endswith(("A = 0", "advantage is 0"))


def test_all_that_write_their_arithmetic_are_tested() -> None:
    default = AdvantageEstimator.arithmetic
    own = {
        name
        for name in menu("advantages")
        if type(estimator_of({"name": name})).arithmetic is not default
    }
    assert {spec["name"] for spec in SPECS} == own


class Centred(AdvantageEstimator):
    """An estimator of a user's own."""

    fails: bool = False

    def __call__(self, inputs: AdvantageInputs) -> AdvantageOutputs:
        group = moments_of(inputs.rewards, inputs.groups, 0)
        advantages = np.nan_to_num(inputs.rewards - group.mean)
        return AdvantageOutputs(advantages, group.mean, group.std, group.spread)

    def arithmetic(self, inputs: AdvantageInputs, row: int) -> Arithmetic:
        if self.fails:
            raise KeyError("row")
        group = moments_of(inputs.rewards, inputs.groups, 0)
        value = float(inputs.rewards[row] - group.mean[row])
        return [f"A = {value:+.3g}"], value


def test_an_estimator_of_a_users_own_writes_its_arithmetic() -> None:
    advantage = Centred()(seen()).advantages[0]
    assert written_out(Centred(), seen(), 0, advantage) == ["A = +0.3"]
    assert written_out(Centred(), seen(), 0, advantage + 1) == []
    (line,) = written_out(Centred(fails=True), seen(), 0, advantage)
    assert line.startswith("the estimator failed: KeyError")


def test_another_number_is_not_explained() -> None:
    estimator, inputs = estimator_of({"name": "group"}), seen()
    value = estimator(inputs).advantages[0]
    assert written_out(estimator, inputs, 0, value)
    assert written_out(estimator, inputs, 0, -value) == []


def test_large_groups_are_counted_and_not_listed() -> None:
    inputs = advantage_inputs([float(place % 2) for place in range(64)])
    estimator = estimator_of({"name": "group"})
    lines = written_out(estimator, inputs, 1, estimator(inputs).advantages[1])
    assert lines[0] == "μ = mean(64 rewards) = 0.5"


def test_every_estimator_has_a_formula_at_its_head() -> None:
    assert formula_of(type(estimator_of({"name": "group"}))) == ["A_i = (r_i − μ_g) / (σ + eps)"]
    for name in menu("advantages"):
        lines = formula_of(type(estimator_of({"name": name})))
        assert any("=" in line for line in lines), name
