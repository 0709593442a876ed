"""Saved views of MLflow's pages: what they open with, and that users may change them."""

import json

from pipeline.tracking import views
from pipeline.tracking.sync import bring_up_to_date, first_page
from tests.unit.tracking.conftest import Shown
from tests.unit.tracking.project import Project


def _saved(shown: Shown) -> dict[str, str]:
    tags: dict[str, str] = shown.client.get_experiment(shown.experiment_id).tags
    return {name: text for name, text in tags.items() if "ViewState." in name}


def test_views_show_the_metrics_that_the_run_has(finished: Project) -> None:
    bring_up_to_date(finished.params)
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
    traces = json.loads(json.loads(saved["mlflow.tracesV4ViewState.rollbook-rollouts"])["state"])
    assert traces["assessmentColumns"].keys() >= {"reward", "reward_numeric_answer", "advantage"}
    assert all(len(text) <= views.LENGTH for text in saved.values())


def test_what_a_user_saved_over_a_view_stays(finished: Project) -> None:
    bring_up_to_date(finished.params)
    shown = Shown()
    name = "mlflow.sharedViewState.rollbook-runs"
    before = json.loads(_saved(shown)[name])
    mine = json.dumps({**before, "updatedAt": before["updatedAt"] + 1, "state": "{}"})
    shown.client.set_experiment_tag(shown.experiment_id, name, mine)
    shown.client.set_experiment_tag(shown.experiment_id, f"{views.RUNS_TAG}own", "not JSON")
    bring_up_to_date(finished.params)
    assert _saved(shown)[name] == mine


def test_the_first_page_is_there_once_something_is() -> None:
    project = Project(1)
    assert first_page(project.params) == ""
    project.finish("i0001")
    assert first_page(project.params).endswith("&viewStateShareKey=rollbook-runs")
