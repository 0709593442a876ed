"""Re-scores in MLflow: one run per question, inside the run of the chain it is about."""

import json
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from rollbook.core.errors import ArtifactError
from rollbook.project.plan import load_stage
from rollbook.project.plan_file import RESCORE_STAGE
from rollbook.project.run.run import Run
from rollbook.tables.artifacts import read_facts, write_json
from rollbook.views.mlflow.rescore_runs import Answers, stored_answers
from rollbook.views.mlflow.sync import bring_up_to_date, start_anew
from tests.unit.views.mlflow.conftest import Shown
from tests.unit.views.mlflow.project import Project

NUMBERS = {
    "old_reward": 0.5,
    "reward": 0.25,
    "rank_correlation": None,
    "sign_flips": 3,
    "groups_gained": 1,
    "groups_lost": 0,
}


def _rescore(project: Project, *keys: str, reward: float = 0.25) -> None:
    """Leaves on disk what the steps of a re-score `strict` leave."""
    yaml = YAML()
    content = yaml.load(Path("params.yaml").read_text())
    content["rescores"] = {"strict": {"recipe": "grpo"}}
    with Path("params.yaml").open("w") as stream:
        yaml.dump(content, stream)
    stage = load_stage(RESCORE_STAGE).for_rescore("strict")
    for key in keys:
        info = {
            "finished": f"2026-01-02T00:00:{int(key[-4:]):02d}.000+00:00",
            "settings": {"score_rollouts": {"rewards": [{"name": "numeric_answer"}]}},
            "inputs": _read(project, key),
        }
        write_json(info, stage.run_info_path(key))
        write_json({**NUMBERS, "reward": reward}, stage.metrics_path(key))


def _read(project: Project, key: str) -> dict[str, str]:
    inputs = load_stage(RESCORE_STAGE).inputs
    paths = {item.label: item.path(key, project.params) for item in inputs}
    return {label: read_facts(path).content_hash for label, path in paths.items()}


def test_stored_re_scores_are_shown_once_inside_the_chain(finished: Project) -> None:
    _rescore(finished, "i0001", "i0002")
    assert bring_up_to_date(Run())[-1] == "rescores.strict"
    assert bring_up_to_date(Run()) == []
    shown = Shown()
    [run] = shown.of_kind("rescore")
    assert run.data.tags["mlflow.parentRunId"] == shown.chains[0].info.run_id
    assert run.info.run_name == "re-scored: rescores.strict"
    assert shown.curve(run, "reward") == {1: 0.25, 2: 0.25}
    assert shown.curve(run, "non_finite") == {1: 1.0, 2: 1.0}
    assert "rank_correlation" not in run.data.metrics
    assert run.data.params["score_rollouts.rewards.0.name"] == "numeric_answer"
    assert "| i0002 | 0.500 → 0.250 | 3 | 1 | 0 |" in run.data.tags["mlflow.note.content"]


def test_new_answers_take_the_place_of_the_old(finished: Project) -> None:
    _rescore(finished, "i0001")
    bring_up_to_date(Run())
    _rescore(finished, "i0001", "i0002", reward=0.75)
    assert bring_up_to_date(Run()) == ["rescores.strict"]
    [run] = Shown().of_kind("rescore")
    assert Shown().curve(run, "reward") == {1: 0.75, 2: 0.75}


def test_an_answer_that_is_no_number_is_named(finished: Project) -> None:
    _rescore(finished, "i0001")
    file = load_stage(RESCORE_STAGE).for_rescore("strict").metrics_path("i0001")
    file.write_text(json.dumps({**NUMBERS, "reward": "half"}))
    with pytest.raises(ArtifactError, match=r"strict/i0001\.json: .*reward: 'half', expected"):
        stored_answers(Run())


def test_an_iteration_that_changed_since_is_not_shown(finished: Project) -> None:
    _rescore(finished, "i0001", "i0002")
    finished.change("generate_rollouts", "i0002")
    finished.finish("i0002")
    bring_up_to_date(Run())
    [run] = Shown().of_kind("rescore")
    assert Shown().curve(run, "reward") == {1: 0.25}


def test_a_store_made_anew_holds_what_is_stored(
    finished: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    _rescore(finished, "i0001")
    uri = f"sqlite:///{Path('elsewhere.db').resolve()}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    bring_up_to_date(Run())
    start_anew(Run())
    assert Shown(uri=uri).runs == []
    assert "rescores.strict" in bring_up_to_date(Run())


def test_what_was_asked_just_now_is_a_run_of_its_own(finished: Project) -> None:
    _rescore(finished, "i0001")
    read = {"i0002": _read(finished, "i0002")}
    asked = Answers("own.py:f:0.5", {"rewards": ["f"]}, {"i0002": NUMBERS}, read, 1767312000_000)
    assert bring_up_to_date(Run(), [asked])[-2:] == ["rescores.strict", "own.py:f:0.5"]
    names = [run.info.run_name for run in Shown().of_kind("rescore")]
    assert sorted(names) == ["re-scored: own.py:f:0.5", "re-scored: rescores.strict"]


def test_nothing_is_stored_without_an_entry(finished: Project) -> None:
    assert stored_answers(Run()) == []
