"""Digests of steps, and plans that are damaged."""

from pathlib import Path

import pytest

from rollbook.project.plan import make_plan, rescore_plan
from rollbook.project.plan_file import ITERATION_STAGES, planned_digest
from rollbook.settings.params import parse_params
from rollbook.stages.update_policy import Settings
from tests.unit.settings.test_params import shipped

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_only_steps_that_read_a_setting_change_with_it() -> None:
    before = make_plan(parse_params(shipped()))
    after = make_plan(parse_params(shipped(recipes__grpo__update_policy__learning_rate=1e-3)))
    assert {name for name in ITERATION_STAGES if before["i0002"][name] != after["i0002"][name]} == {
        "update_policy"
    }
    assert before["init_policy"] == after["init_policy"]


def test_runtime_and_tracking_are_no_part_of_any_digest() -> None:
    changed = shipped(runtime__threads=2, tracking__experiment="other")
    assert make_plan(parse_params(shipped())) == make_plan(parse_params(changed))


def test_what_predecessors_draw_counts_for_prompts_alone() -> None:
    raw = shipped()
    raw["recipes"]["fewer"] = {"extends": "grpo", "prepare_prompts": {"prompts_per_iteration": 8}}
    raw["iterations"]["i0001"]["recipe"] = "fewer"
    before, after = make_plan(parse_params(shipped())), make_plan(parse_params(raw))
    changed = {name for name in ITERATION_STAGES if before["i0002"][name] != after["i0002"][name]}
    assert changed == {"prepare_prompts"}


def test_a_re_score_depends_on_rewards_and_estimator_of_its_recipe_alone() -> None:
    raw = shipped(rescores={"strict": {"recipe": "strict"}})
    raw["iterations"] = {key: raw["iterations"][key] for key in ("i0001", "i0002")}

    def planned(**changes: object) -> dict[str, dict[str, str]]:
        raw["recipes"]["strict"] = {"extends": "grpo", **changes}
        return rescore_plan(parse_params(raw))

    before = planned()
    assert before.keys() == {"strict"} and before["strict"].keys() == {"i0001", "i0002"}
    assert planned(update_policy={"learning_rate": 1e-3}) == before
    for change in (
        {"score_rollouts": {"rewards": [{"name": "exact_match"}]}},
        {"compute_advantages": {"estimator": {"name": "leave_one_out"}}},
    ):
        after = planned(**change)["strict"]
        assert all(after[key] != before["strict"][key] for key in after)


def test_a_plan_holds_re_scores_by_name_and_iteration() -> None:
    plan = {"rescores": {"strict": {"i0001": "digest"}}, "i0001": {"rescore_rollouts": "other"}}
    assert planned_digest(plan, "rescore_rollouts", "i0001", "strict") == "digest"
    assert planned_digest(plan, "rescore_rollouts", "i0002", "strict") is None
    assert planned_digest({"rescores": 3}, "rescore_rollouts", "i0001", "strict") is None


def test_settings_are_named_by_their_place_in_params_yaml() -> None:
    assert Settings.places()["update"] == "update_policy"
    assert Settings.places()["seed"] == "seed"


@pytest.mark.parametrize(
    "plan", [{}, {"i0001": 3}, {"i0001": {"update_policy": 3}}, {"i0001": None}]
)
def test_a_damaged_plan_has_no_digest(plan: dict[str, object]) -> None:
    assert planned_digest(plan, "update_policy", "i0001") is None
