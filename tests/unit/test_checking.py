"""What `check` warns of, and what it says would run again."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from pipeline.artifacts import path_of, write_json
from pipeline.checking import (
    Change,
    Rerun,
    causes,
    describe,
    guard,
    reruns,
    unfinished,
    waiting_rescores,
    warnings_for,
)
from pipeline.cli.check import check
from pipeline.errors import RollbookError
from pipeline.params import parse_params
from pipeline.plan import load_stage, make_plan
from pipeline.plan_file import ITERATION_STAGES, RESCORE_STAGE
from pipeline.yaml_text import flow
from tests.unit.test_params import shipped

ROOT = Path(__file__).parents[2]


def _warnings(**changes: Any) -> list[str]:
    return list(warnings_for(parse_params(shipped(**changes))))


def test_the_shipped_settings_need_no_warning() -> None:
    assert _warnings() == []


POLICY = """from pipeline.policies.base import BasePolicy


class Mine(BasePolicy):
    def parameter_count(self):
        return {count}
"""


@pytest.mark.parametrize(
    ("count", "rate", "warned"),
    [
        (10_000_001, 2e-5, "10M parameters"),
        (None, 2e-5, "a policy whose size is not known yet"),
        (10_000_001, 1e-5, None),
        (10_000_000, 1e-2, None),
    ],
)
def test_high_learning_rate_for_a_large_policy(
    project: Path, count: int | None, rate: float, warned: str | None
) -> None:
    (project / "my_policy.py").write_text(POLICY.format(count=count))
    found = _warnings(
        policy__base={"path": "my_policy.py:Mine"},
        recipes__grpo__update_policy__learning_rate=rate,
    )
    assert [f"is high for full fine-tuning of {warned}" in warning for warning in found] == [
        True
    ] * bool(warned)


def test_half_of_dr_grpo() -> None:
    dr_grpo = {"name": "dr_grpo"}
    [warning] = _warnings(recipes__grpo__update_policy__loss=dr_grpo)
    assert "the estimator by the deviation of the group: Dr. GRPO drops both" in warning
    whole = {"name": "group", "scale": "none"}
    assert not _warnings(
        recipes__grpo__update_policy__loss=dr_grpo,
        recipes__grpo__compute_advantages__estimator=whole,
    )


def test_groups_of_two() -> None:
    [warning] = _warnings(recipes__grpo__generate_rollouts__group_size=2)
    assert warning.startswith("recipes.grpo: generate_rollouts.group_size: with groups of two")


def test_prompts_judged_in_another_format() -> None:
    [warning] = _warnings(recipes__grpo__prepare_prompts__system_prompt="Answer with a number.")
    assert (
        warning
        == "recipes.grpo.prepare_prompts.system_prompt differs from evaluate_policy.system_prompt"
    )


def test_recipes_that_no_iteration_uses_are_not_judged() -> None:
    raw = shipped()
    raw["recipes"]["pairs"] = {"extends": "grpo", "generate_rollouts": {"group_size": 2}}
    assert list(warnings_for(parse_params(raw))) == []


def _lock(folder: Path, plan: dict[str, Any], keys: list[str]) -> Path:
    """A dvc.lock in which these iterations are finished under this plan."""
    lines = ["schema: '2.0'", "stages:"]
    for key in keys:
        for stage in ITERATION_STAGES:
            lines += [
                f"  {stage}@{key}:",
                "    cmd: x",
                "    params:",
                "      artifacts/plan.json:",
            ]
            lines.append(f"        {key}.{stage}: {plan[key][stage]}")
    file = folder / "dvc.lock"
    file.write_text("\n".join(lines) + "\n")
    return file


def test_a_changed_learning_rate_runs_the_update_and_all_that_follows(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = parse_params(shipped())
    lock = _lock(project, make_plan(before), ["i0001", "i0002"])
    assert reruns(before, make_plan(before), lock) == []
    assert unfinished(before, lock)[0] == "i0003"
    write_json(
        {"seconds": {"total": 1800.0}, "settings": {"update": {"learning_rate": 3e-4}}},
        path_of("run_info/update_policy", "i0001"),
    )

    after = parse_params(shipped(recipes__grpo__update_policy__learning_rate=1e-3))
    found = reruns(after, make_plan(after), lock)
    assert [(step.stage, step.key) for step in found] == [
        ("update_policy", "i0001"),
        ("evaluate_policy", "i0001"),
        *((stage, "i0002") for stage in ITERATION_STAGES),
    ]
    assert "update_policy.learning_rate: 0.0003 → 0.001" in map(str, found[0].reasons)
    assert found[1].reasons == ()
    assert found[2].reasons == (), "its run_info is not here: what it ran with is not known"


def test_what_changed_is_told_by_kind() -> None:
    rate = Change("setting", "update_policy.learning_rate", "1 → 2")
    code = [Change("code", f"pipeline/{name}.py", "changed") for name in "ab"]
    data = Change("file", "my.jsonl", "gone")
    found = [
        Rerun("prepare_data", "i0000", (data,), 1.0),
        Rerun("update_policy", "i0001", (rate, *code), 1.0),
        Rerun("update_policy", "i0002", (rate, *code), 1.0),
    ]
    assert causes(found) == (
        "data (my.jsonl), settings (update_policy.learning_rate), code (pipeline/a.py, pipeline/b.py)"
    )
    assert "code pipeline/b.py: changed" in describe(found)
    assert causes([]) == ""
    without = [Rerun("update_policy", "i0001", (), 1.0)]
    assert "run_info" in causes(without) and causes(without) in describe(without)


def test_the_guard_stops_above_the_limit_and_names_the_ways_on() -> None:
    found = [
        Rerun("update_policy", "i0001", (Change("setting", "update.epochs", "1 → 2"),), 3000.0),
        Rerun("evaluate_policy", "i0001", (), 1200.0),
    ]
    guard(found, 1.2)
    with pytest.raises(RollbookError) as caught:
        guard(found, 1.0)
    text = str(caught.value)
    assert "2 finished steps run again, from update_policy@i0001 on; they took 1.2 h" in text
    assert (
        "update.epochs: 1 → 2" in text
        and "runtime.max_rerun_hours: 1.3" in text
        and "extends" in text
    )


def test_nothing_to_run_again() -> None:
    assert describe([]) == "nothing that is finished runs again"
    guard([], 0.0)


def test_re_scores_that_would_run(project: Path) -> None:
    raw = shipped(rescores={"again": {"recipe": "grpo"}})
    raw["iterations"] = dict.fromkeys(("i0001", "i0002", "i0003"), raw["iterations"]["i0001"])
    params = parse_params(raw)
    plan = make_plan(params)
    locks = (project / "dvc.lock", project / "rescore.lock")
    assert waiting_rescores(params, plan, *locks) == {"again": []}

    def made(key: str) -> list[dict[str, str]]:
        stage = load_stage(RESCORE_STAGE)
        return [
            {"path": str(path), "hash": "md5", "md5": f"{number:032d}"}
            for number, path in enumerate(stage.input_paths(key, params))
        ]

    trained = {f"made@{key}": {"cmd": "x", "outs": made(key)} for key in ("i0001", "i0002")}
    _write_lock(locks[0], trained)
    assert waiting_rescores(params, plan, *locks) == {"again": ["i0001", "i0002"]}

    scored = {
        f"{RESCORE_STAGE}@again-{key}": {
            "cmd": "x",
            "deps": made(key),
            "params": {"artifacts/plan.json": {f"rescores.again.{key}": digest}},
        }
        for key, digest in plan["rescores"]["again"].items()
    }
    _write_lock(locks[1], scored)
    assert waiting_rescores(params, plan, *locks) == {"again": []}
    scored[f"{RESCORE_STAGE}@again-i0001"]["params"]["artifacts/plan.json"] = {"x": "other"}
    scored[f"{RESCORE_STAGE}@again-i0002"]["deps"][0]["md5"] = "f" * 32
    _write_lock(locks[1], scored)
    assert waiting_rescores(params, plan, *locks) == {"again": ["i0001", "i0002"]}


def test_check_names_re_scores(project: Path) -> None:
    raw = shipped(rescores={"again": {"recipe": "grpo"}})
    Path("params.yaml").write_text("\n".join(f"{key}: {flow(value)}" for key, value in raw.items()))
    done = CliRunner().invoke(check, catch_exceptions=False)
    assert "recipes grpo, re-scores again (recipe grpo): all valid" in done.output
    assert "--stage" not in done.output  # nothing is trained yet


def _write_lock(path: Path, stages: dict[str, Any]) -> None:
    with path.open("w") as stream:
        YAML().dump({"schema": "2.0", "stages": stages}, stream)
