"""What `check` warns of, and what it says would run again."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from rollbook.cli.check import check
from rollbook.core.errors import RollbookError
from rollbook.core.process import installed_versions
from rollbook.core.yaml import flow
from rollbook.project.check import describe, guard, warnings_for
from rollbook.project.plan import load_stage, make_plan, planned
from rollbook.project.plan_file import ITERATION_STAGES, ONCE_STAGES, RESCORE_STAGE, planned_digest
from rollbook.project.run.currency import Currency, Rerun, RerunReason, currency_of
from rollbook.project.run.run import Run
from rollbook.settings.config import Params
from rollbook.settings.params import parse_params
from rollbook.tables.artifacts import path_of, write_json
from tests.unit.settings.test_params import shipped

ROOT = Path(__file__).parents[3]


def _warnings(**changes: Any) -> list[str]:
    return list(warnings_for(parse_params(shipped(**changes))))


def test_the_shipped_settings_need_no_warning() -> None:
    assert _warnings() == []


POLICY = """from rollbook.components.policies.base import BasePolicy


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


def currency(params: Params) -> Currency:
    """Of the current folder under these settings."""
    run = Run()
    vars(run)["params"] = params
    return currency_of(run)


def _lock(folder: Path, params: Params, keys: list[str]) -> None:
    """A dvc.lock in which the base policy and these iterations are finished under the plan of these settings."""
    plan = make_plan(params)
    steps = [(name, "i0000") for name in (*ONCE_STAGES, "evaluate_policy")]
    steps += [(name, key) for key in keys for name in ITERATION_STAGES]
    entries = {}
    for name, key in steps:
        stage = load_stage(name)
        reads = [{"path": str(path), "md5": "a" * 32} for path in stage.input_paths(key, params)]
        digest = planned_digest(plan, name, key)
        entries[f"{name}@{key}"] = {
            "cmd": "x",
            "deps": reads,
            "params": {"artifacts/plan.json": {f"{key}.{name}": digest}},
        }
    _write_lock(folder / "dvc.lock", entries)


def test_a_changed_learning_rate_runs_the_update_and_all_that_follows(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = parse_params(shipped())
    _lock(project, before, ["i0001", "i0002"])
    assert currency(before).reruns == []
    assert currency(before).unfinished[0] == "i0003"
    write_json(
        {"seconds": {"total": 1800.0}, "settings": {"update": {"learning_rate": 3e-4}}},
        path_of("run_info/update_policy", "i0001"),
    )

    after = parse_params(shipped(recipes__grpo__update_policy__learning_rate=1e-3))
    found = currency(after).reruns
    assert [(step.stage, step.key) for step in found] == [
        ("update_policy", "i0001"),
        ("evaluate_policy", "i0001"),
        *((stage, "i0002") for stage in ITERATION_STAGES),
    ]
    assert "update_policy.learning_rate: 0.0003 → 0.001" in map(str, found[0].reasons)
    assert found[1].reasons == ()
    assert found[2].reasons == (), "its run_info is not here: what it ran with is not known"


def test_the_cause_names_what_changed_by_kind(project: Path) -> None:
    before = parse_params(shipped())
    _lock(project, before, ["i0001"])
    assert currency(before).cause == ""
    settings = planned(before, "update_policy", "i0001").settings
    info = {"settings": settings, "code": {"rollbook/gone.py": "1"}, "files": {"my.jsonl": "1"}}
    for stage in ("update_policy", "evaluate_policy"):
        write_json(info, path_of(f"run_info/{stage}", "i0001"))
    after = parse_params(shipped(recipes__grpo__update_policy__learning_rate=1e-3))
    found = currency(after)
    words = found.cause
    assert words.startswith("settings (update_policy.learning_rate), code (rollbook/")
    assert words.endswith("data (my.jsonl)")
    assert "code rollbook/gone.py: gone" in map(str, found.reruns[0].reasons)
    path_of("run_info/update_policy", "i0001").unlink()
    without = currency(after)
    assert "run_info" in without.cause and without.cause in describe(without.reruns, without.cause)


def test_an_upgrade_is_named_before_the_files_that_it_changed(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = parse_params(shipped())
    _lock(project, params, ["i0001"])
    Path("dvc.lock").write_text(
        Path("dvc.lock").read_text().replace(planned(params, "update_policy", "i0001").digest, "0")
    )
    now = planned(params, "update_policy", "i0001")
    info: dict[str, Any] = {
        "settings": now.settings,
        "code": {**now.code, "rollbook/rl/estimation.py": "1"},
        "environment": {"packages": {"rollbook": "0.0.9"}},
    }
    write_json(info, path_of("run_info/update_policy", "i0001"))
    version = installed_versions(["rollbook"])["rollbook"]
    found = currency(params)
    assert list(map(str, found.reruns[0].reasons)) == [
        f"package rollbook: 0.0.9 → {version}",
        "code rollbook/rl/estimation.py: changed",
    ]
    cause = f"package (rollbook 0.0.9 → {version}), code (rollbook/rl/estimation.py)"
    assert found.cause == cause
    info["environment"]["packages"]["rollbook"] = version
    write_json(info, path_of("run_info/update_policy", "i0001"))
    assert [each.kind for each in currency(params).reruns[0].reasons] == ["code"]
    info["environment"]["packages"]["rollbook"] = "0.0.9"
    write_json(
        {**info, "code": {**now.code, "mine.py": "1"}}, path_of("run_info/update_policy", "i0001")
    )
    assert [each.place for each in currency(params).reruns[0].reasons] == ["mine.py"]


def test_scores_made_again_make_their_followers_stale(project: Path) -> None:
    """A `dvc repro` killed behind score_rollouts@i0001: check once counted 0 steps here, and status 38."""
    params = parse_params(shipped())
    _lock(project, params, ["i0001", "i0002"])
    text = Path("dvc.lock").read_text()
    stages = YAML(typ="safe").load(text)["stages"]
    made = [{"path": "artifacts/scores/i0001.parquet", "md5": "b" * 32, "size": 1}]
    stages["score_rollouts@i0001"]["outs"] = made
    _write_lock(Path("dvc.lock"), stages)
    found = currency(params)
    stale = [(step.stage, step.key) for step in found.reruns]
    assert stale[:2] == [("compute_advantages", "i0001"), ("update_policy", "i0001")]
    assert stale[-1] == ("evaluate_policy", "i0002") and len(stale) == 3 + len(ITERATION_STAGES)
    assert found.cause == "tables that they read, which were made again since"
    with pytest.raises(RollbookError, match="10 finished steps run again"):
        guard([Rerun(*step, (), 3600.0) for step in stale], 1.0, found.cause)
    assert "made again since" in describe(found.reruns, found.cause)


def test_the_guard_stops_above_the_limit_and_names_the_ways_on() -> None:
    found = [
        Rerun(
            "update_policy", "i0001", (RerunReason("setting", "update.epochs", "1 → 2"),), 3000.0
        ),
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
    locks = (Path("dvc.lock"), Path("rescores/dvc.lock"))
    locks[1].parent.mkdir()
    assert currency(params).waiting_rescores == {"again": []}

    def made(key: str) -> list[dict[str, str]]:
        stage = load_stage(RESCORE_STAGE)
        return [
            {"path": str(path), "hash": "md5", "md5": f"{number:032d}"}
            for number, path in enumerate(stage.input_paths(key, params))
        ]

    trained = {f"made@{key}": {"cmd": "x", "outs": made(key)} for key in ("i0001", "i0002")}
    _write_lock(locks[0], trained)
    assert currency(params).waiting_rescores == {"again": ["i0001", "i0002"]}

    scored = {
        f"{RESCORE_STAGE}@again-{key}": {
            "cmd": "x",
            "deps": made(key),
            "params": {"artifacts/plan.json": {f"rescores.again.{key}": digest}},
        }
        for key, digest in plan["rescores"]["again"].items()
    }
    _write_lock(locks[1], scored)
    assert currency(params).waiting_rescores == {"again": []}
    scored[f"{RESCORE_STAGE}@again-i0001"]["params"]["artifacts/plan.json"] = {"x": "other"}
    scored[f"{RESCORE_STAGE}@again-i0002"]["deps"][0]["md5"] = "f" * 32
    _write_lock(locks[1], scored)
    assert currency(params).waiting_rescores == {"again": ["i0001", "i0002"]}


def test_check_names_re_scores(project: Path) -> None:
    raw = shipped(rescores={"again": {"recipe": "grpo"}})
    Path("params.yaml").write_text("\n".join(f"{key}: {flow(value)}" for key, value in raw.items()))
    done = CliRunner().invoke(check, catch_exceptions=False)
    assert "recipes grpo, re-scores again (recipe grpo): all valid" in done.output
    assert "--stage" not in done.output  # nothing is trained yet


def _write_lock(path: Path, stages: dict[str, Any]) -> None:
    with path.open("w") as stream:
        YAML().dump({"schema": "2.0", "stages": stages}, stream)
