from pathlib import Path
from typing import Any, cast

from rollbook.project.plan_file import ITERATION_STAGES
from rollbook.project.run.run import Run
from rollbook.tables.artifacts import path_of, read_json, write_json
from rollbook.views.mlflow.chains import merged, read_chains
from rollbook.views.mlflow.links import artifacts_of
from tests.unit.views.mlflow.project import Project


def keys(project: Project) -> list[list[str]]:
    return [list(chain.contents) for chain in read_chains(Run())]


def test_a_chain_holds_what_is_finished() -> None:
    project = Project(3)
    assert keys(project) == []
    assert keys(project.finish()) == []
    assert keys(project.finish("i0001", "i0002")) == [["i0001", "i0002"]]


def test_an_iteration_counts_when_all_its_stages_are_finished(finished: Project) -> None:
    path_of("metrics/evaluate_policy", "i0002").unlink()
    assert keys(finished) == [["i0001"]]


def test_settings_that_changed_since_make_a_step_stale(finished: Project) -> None:
    finished.change("evaluate_policy", "i0003")
    assert keys(finished) == [["i0001", "i0002"]]


def test_inputs_that_changed_since_make_a_step_stale(finished: Project) -> None:
    """i0002 ran again and came out differently: what lies on disk for i0003 belongs to the old chain."""
    finished.change("generate_rollouts", "i0002")
    finished.finish("i0002")
    assert keys(finished) == [["i0001", "i0002"]]


def test_a_step_that_came_out_as_before_leaves_the_chain_whole(finished: Project) -> None:
    before = keys(finished)
    finished.run("score_rollouts", "i0002")
    assert keys(finished) == before


def test_content_changes_with_tables_and_metrics_but_not_with_times(finished: Project) -> None:
    content = dict(read_chains(Run())[0].contents)
    info = path_of("run_info/update_policy", "i0003")
    info.write_text(info.read_text().replace('"total": 1.0', '"total": 7.0'))
    assert read_chains(Run())[0].contents == content
    finished.run("update_policy", "i0003", metrics={"loss": 0.25})
    changed = read_chains(Run())[0].contents
    assert {key for key in content if content[key] != changed[key]} == {"i0003"}


def test_the_seed_is_the_one_that_ran(finished: Project) -> None:
    """params.yaml may have been edited since, with no `dvc repro` yet."""
    [before] = read_chains(Run())
    finished.configure({"i0001": "i0000"}, seed=5)
    [after] = read_chains(Run())
    assert (after.seed, after.origin) == (before.seed, before.origin)


def test_branches_are_chains_of_their_own(finished: Project) -> None:
    finished.configure({"i0001": "i0000", "i0002": "i0001", "strict0002": "i0001"})
    finished.finish("strict0002")
    assert keys(finished) == [["i0001", "i0002"], ["i0001", "strict0002"]]


def test_without_a_plan_inputs_alone_decide(finished: Project) -> None:
    Path("artifacts/plan.json").unlink()
    assert keys(finished) == [["i0001", "i0002", "i0003"]]


def test_a_name_used_twice_gets_its_stage() -> None:
    metrics = merged({"one": {"rows": 1.0, "loss": 2.0}, "two": {"rows": 3.0}})
    assert metrics == {"one/rows": 1.0, "loss": 2.0, "two/rows": 3.0}


def test_what_older_code_did_not_make_is_lacking_unless_its_iteration_is_sealed(
    finished: Project,
) -> None:
    for key in finished.params.iterations:
        for name in ITERATION_STAGES:
            path = path_of(f"run_info/{name}", key)
            info = read_json(path)
            for side in ("inputs", "outputs"):
                info[side] = {
                    each: found
                    for each, found in info[side].items()
                    if each not in ("pairs", "values")
                }
            write_json(info, path)
    assert keys(finished) == []
    run, sealed = Run(), cast(Any, finished.params.iterations)
    run.params = finished.params.with_sealed(sealed)
    [chain] = read_chains(run)
    assert list(chain.contents) == ["i0001", "i0002", "i0003"]
    kinds = {each.kind for each in artifacts_of(run, chain.steps[0])}
    assert "updates" in kinds and not {"pairs", "values"} & kinds
