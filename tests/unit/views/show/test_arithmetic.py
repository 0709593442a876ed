"""Advantages are computed again as the stage computes them, and what was tampered with is told."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from rollbook.rl.estimation import advantages_table, estimation_of
from rollbook.settings.recipe_sections import ComputeAdvantages
from rollbook.views.show.arithmetic import arithmetic_of
from rollbook.views.show.facts import AdvantageArithmetic
from tests.stored_iterations import tables_of

GROUP_SIZE, ROWS = 4, 8
KL_COEF = 0.1
CASES: list[tuple[dict[str, Any], int]] = [
    ({"estimator": {"name": "group"}}, GROUP_SIZE),
    ({"estimator": {"name": "group"}, "reward_clip": [0.0, 0.5]}, GROUP_SIZE),
    ({"estimator": {"name": "group"}, "kl_coef": KL_COEF}, GROUP_SIZE),
    ({"estimator": {"name": "group", "scale": "batch"}}, ROWS),
    ({"estimator": {"name": "leave_one_out", "normalize": True}}, ROWS),
    ({"estimator": {"name": "gpg"}}, ROWS),
    ({"estimator": {"name": "gdpo"}}, ROWS),
    ({"estimator": {"name": "reinforce_plus_plus"}, "kl_coef": KL_COEF}, ROWS),
]
"""Settings of `compute_advantages`, and the rollouts that the first one's advantage takes."""

Tables = dict[str, pa.Table]


def tables_for(compute: dict[str, Any], greedy: bool = False) -> Tables:
    """An iteration whose advantages are those of these settings."""
    tables = tables_of(reference=-0.8, greedy=["3", "4"] if greedy else None)
    built = ComputeAdvantages.model_validate(compute)
    found = estimation_of(
        tables["rollouts"],
        tables["scores"],
        tables["logprobs"],
        built,
        {"reward_numeric_answer": 1.0},
        GROUP_SIZE,
        KL_COEF,
    )
    kept = np.ones(len(found.given.rewards), bool)
    made = advantages_table(tables["rollouts"], found.groups, found.outputs, kept)
    return {**tables, "advantages": made}


def looked_at(tables: Tables, compute: dict[str, Any], row: int) -> AdvantageArithmetic | None:
    """The arithmetic of one rollout, with its group at hand and all tables behind it."""
    rollouts = tables["rollouts"]
    group = rollouts["group_id"][row].as_py()
    settings = {
        "compute_advantages": compute,
        "rewards": [{"column": "reward_numeric_answer", "weight": 1.0}],
        "group_size": GROUP_SIZE,
    }
    own = {
        name: tables[name].filter(pc.equal(tables[name]["group_id"], group))
        for name in ("rollouts", "scores", "logprobs", "advantages")
    }
    return arithmetic_of(rollouts["rollout_id"][row].as_py(), settings, None, own, lambda: tables)


@pytest.mark.parametrize(("compute", "rollouts"), CASES, ids=lambda case: str(case))
def test_advantages_are_those_that_were_stored(compute: dict[str, Any], rollouts: int) -> None:
    tables = tables_for(compute)
    stored = tables["advantages"]["advantage"].to_pylist()
    assert any(stored)
    for row, advantage in enumerate(stored):
        found = looked_at(tables, compute, row)
        assert found is not None
        assert found.agrees is True, found.problem
        assert found.computed == pytest.approx(advantage, abs=1e-12)
        assert found.words and found.formula and found.steps
        assert found.steps[0].startswith("reward = 1 · ")
    first = looked_at(tables, compute, 0)
    assert first is not None and first.from_rollouts == rollouts


@pytest.mark.parametrize(("compute", "rollouts"), CASES, ids=lambda case: str(case))
def test_another_stored_advantage_is_told(compute: dict[str, Any], rollouts: int) -> None:
    tables = tables_for(compute)
    column = tables["advantages"]["advantage"]
    place = tables["advantages"].column_names.index("advantage")
    tables["advantages"] = tables["advantages"].set_column(place, "advantage", pc.add(column, 1e-3))
    found = looked_at(tables, compute, 0)
    assert found is not None and found.agrees is False
    assert "the stored advantage is" in found.problem


def test_another_advantage_of_a_token_is_told() -> None:
    compute = {"estimator": {"name": "reinforce_plus_plus"}, "kl_coef": KL_COEF}
    tables = tables_for(compute)
    tokens = tables["advantages"]["token_advantages"].to_pylist()
    tokens[0] = tokens[0][::-1]
    place = tables["advantages"].column_names.index("token_advantages")
    column = pa.array(tokens, tables["advantages"].schema.field(place).type)
    tables["advantages"] = tables["advantages"].set_column(place, "token_advantages", column)
    found = looked_at(tables, compute, 0)
    assert found is not None and found.agrees is False
    assert "of its tokens" in found.problem


def test_a_reward_that_is_not_the_sum_of_its_parts_is_told() -> None:
    compute = {"estimator": {"name": "group"}}
    tables = tables_for(compute)
    scores = tables["scores"]
    place = scores.column_names.index("reward_numeric_answer")
    tables["scores"] = scores.set_column(
        place, "reward_numeric_answer", pc.multiply(scores["reward_numeric_answer"], 0.5)
    )
    found = looked_at(tables, compute, 0)
    assert found is not None and found.agrees is False
    assert found.problem == "the stored reward is 1, its parts make 0.5"


def test_the_penalty_is_written_out() -> None:
    compute = {"estimator": {"name": "group"}, "kl_coef": KL_COEF, "reward_clip": [0.0, 0.5]}
    found = looked_at(tables_for(compute), compute, 0)
    assert found is not None
    # two tokens, −0.5 under the policy and −0.8 under the reference: k1 is 0.3 each
    assert found.steps[1:3] == [
        "held to [0, 0.5]: 0.5",
        "less its KL to the reference, 0.1 · Σ k1 over its tokens = 0.06: 0.44",
    ]


def test_a_greedy_answer_has_no_arithmetic_of_its_own() -> None:
    compute = {"estimator": {"name": "remax"}}
    tables = tables_for(compute, greedy=True)
    greedy = tables["rollouts"]["greedy"].to_pylist()
    for row, is_greedy in enumerate(greedy):
        found = looked_at(tables, compute, row)
        assert (found is None) == is_greedy
        assert found is None or found.agrees is True


def test_settings_that_cannot_be_read_any_more_are_said() -> None:
    tables = tables_for({"estimator": {"name": "group"}})
    found = looked_at(tables, {"estimator": {"name": "gone"}}, 0)
    assert found is not None and found.agrees is None and found.estimator == "gone"
    assert "cannot read its settings" in found.problem
    found = arithmetic_of(
        tables["rollouts"]["rollout_id"][0].as_py(), {}, None, tables, lambda: tables
    )
    assert found is not None and found.agrees is None
    assert "no setting 'compute_advantages'" in found.problem


PICKY = """
from rollbook.components.advantages.group import Group


class Picky(Group):
    least: int = 0

    def __call__(self, inputs):
        if len(inputs.rewards) < self.least:
            raise IndexError("too few of them")
        return super().__call__(inputs)
"""


def test_an_estimator_that_fails_on_a_group_gets_the_iteration(tmp_path: Path) -> None:
    (tmp_path / "picky.py").write_text(PICKY)
    compute = {"estimator": {"path": f"{tmp_path}/picky.py:Picky", "least": ROWS}}
    found = looked_at(tables_for(compute), compute, 0)
    assert found is not None and found.agrees is True
    assert found.from_rollouts == ROWS


def test_an_estimator_that_fails_is_said_and_nothing_else_is_lost(tmp_path: Path) -> None:
    (tmp_path / "picky.py").write_text(PICKY)
    tables = tables_for({"estimator": {"name": "group"}})
    hopeless = {"estimator": {"path": f"{tmp_path}/picky.py:Picky", "least": ROWS + 1}}
    found = looked_at(tables, hopeless, 0)
    assert found is not None and found.agrees is None
    assert found.stored == tables["advantages"]["advantage"][0].as_py()
    assert found.problem == "the estimator failed: IndexError: too few of them"
