"""Saved views of MLflow's pages: what they open with, and that users may change them."""

import json
from pathlib import Path

from ruamel.yaml import YAML

from rollbook.project.run.run import Run
from rollbook.views.mlflow import views
from rollbook.views.mlflow.sync import bring_up_to_date, first_page
from tests.unit.views.mlflow.conftest import Shown
from tests.unit.views.mlflow.project import Project


def _saved(shown: Shown) -> dict[str, str]:
    tags: dict[str, str] = shown.client.get_experiment(shown.experiment_id).tags
    return {name: text for name, text in tags.items() if "ViewState." in name}


def test_views_show_the_metrics_that_the_run_has(finished: Project) -> None:
    bring_up_to_date(Run())
    saved = _saved(Shown())
    found = json.loads(saved["mlflow.sharedViewState.rollbook-runs"])
    assert found["name"] == "Runs: evaluation and reward"
    columns = json.loads(found["state"])["selectedColumns"]
    means = [
        "metrics.`eval/heldout/mean_at_4`",
        "metrics.`eval/heldout/greedy`",
        "metrics.`reward`",
    ]
    assert [each for each in columns if each in means] == means
    curves = json.loads(json.loads(saved["mlflow.sharedViewState.rollbook-curves"])["state"])
    first, *_ = curves["compareRunCharts"]
    assert (first["metricKey"], first["metricSectionId"]) == (
        "eval/heldout/mean_at_4",
        "Evaluation",
    )
    name = "mlflow.sharedViewState.rollbook-iterations"
    iterations = json.loads(json.loads(saved[name])["state"])
    # `kl` is no number in any of them
    assert {"metrics.`kl_old`", "tags.`recipe`"} <= set(iterations["selectedColumns"])
    assert "metrics.`kl`" not in iterations["selectedColumns"]
    assert set(iterations["columnOrder"]) == iterations["columnWidths"].keys()


def test_a_reward_that_is_the_total_has_no_column_of_its_own(finished: Project) -> None:
    bring_up_to_date(Run())
    name = "mlflow.tracesV4ViewState.rollbook-rollouts"
    state = json.loads(json.loads(_saved(Shown())[name])["state"])
    assert state["single"]["cols"].startswith("assessment:reward,input,output,")
    assert state["assessmentColumns"] == {
        "reward": True,
        "reference_answer": True,
        "advantage": True,
        "reward_numeric_answer": False,
    }
    _weigh(finished, 0.5)
    bring_up_to_date(Run())
    state = json.loads(json.loads(_saved(Shown())[name])["state"])
    assert "assessment:reward_numeric_answer" in state["single"]["cols"]


def _weigh(project: Project, weight: float) -> None:
    """Gives the only reward another weight, and makes everything again."""
    yaml = YAML()
    recipes = yaml.load(Path("params.yaml").read_text())["recipes"]
    recipes["grpo"]["score_rollouts"]["rewards"][0]["weight"] = weight
    keys = ("i0001", "i0002", "i0003")
    project.configure({key: f"i{int(key[1:]) - 1:04d}" for key in keys}, recipes=recipes)
    project.finish(*keys)


def test_what_a_user_saved_over_a_view_stays(finished: Project) -> None:
    bring_up_to_date(Run())
    shown = Shown()
    name = "mlflow.sharedViewState.rollbook-runs"
    before = json.loads(_saved(shown)[name])
    mine = json.dumps({**before, "updatedAt": before["updatedAt"] + 1, "state": "{}"})
    shown.client.set_experiment_tag(shown.experiment_id, name, mine)
    shown.client.set_experiment_tag(shown.experiment_id, f"{views.RUNS_TAG}own", "not JSON")
    bring_up_to_date(Run())
    assert _saved(shown)[name] == mine


def test_the_first_page_is_there_once_something_is() -> None:
    project = Project(1)
    assert first_page(Run()) == ""
    project.finish("i0001")
    assert first_page(Run()).endswith("&viewStateShareKey=rollbook-runs")


def test_views_of_many_sets_are_all_saved(project: Path) -> None:
    many = Project(1)
    many.finish("i0001")
    sets = [f"heldout/of_topic_{number}" for number in range(6)]
    scores = ("mean_at_4", "greedy")
    many.run(
        "evaluate_policy", "i0001", {f"eval/{n}/{score}": 0.5 for n in sets for score in scores}
    )
    bring_up_to_date(Run())
    saved = _saved(Shown())
    every = (views.RUNS, views.CURVES, views.ITERATIONS, views.RESCORES, views.ROLLOUTS)
    assert {name.rpartition(".")[2] for name in saved} == {view.key for view in every}
    state = json.loads(json.loads(saved["mlflow.sharedViewState.rollbook-curves"])["state"])
    drawn = [chart["metricKey"] for chart in state["compareRunCharts"]]
    assert drawn[:6] == [f"eval/{name}/mean_at_4" for name in sets]
    assert max(map(len, saved.values())) <= views.LENGTH
