"""A judge as the recipe's reward and in a re-score, through the real `dvc repro`: no verdict is asked for twice."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollbook.components.rewards.verdicts import FILE
from rollbook.tables.artifacts import path_of, read_json
from tests.e2e.projects import edit_params, repro, run, stages_run, table_of
from tests.unit.components.rewards.judge_server import Answer, JudgeServer, judge_server

pytestmark = pytest.mark.e2e
UNREADABLE = "I would rather not say."
STEP = "score_rollouts@i0001"


@pytest.fixture
def server() -> Iterator[JudgeServer]:
    with judge_server() as running:
        yield running


def _judge(server: JudgeServer, **options: Any) -> dict[str, Any]:
    where = {"base_url": server.base_url, "model": "m", "timeout": 10.0}
    return {"name": "judge", "rubric": "10: right", "weight": 0.5, **where, **options}


def _set_rewards(folder: Path, judge: dict[str, Any], weight: float, errors: float) -> None:
    """Scores `grpo` by a number and a judge."""
    edit_params(
        folder,
        recipes__grpo__score_rollouts={
            "rewards": [{"name": "numeric_answer", "weight": weight}, judge],
            "max_error_share": errors,
        },
    )


def _asked(server: JudgeServer) -> int:
    """Requests since the last call."""
    count = len(server.requests)
    server.requests.clear()
    return count


def _answers(folder: Path, key: str) -> list[tuple[str, str]]:
    """Prompt and text of every rollout, in the order of the table."""
    prompts = table_of(folder, "prompts", key).to_pylist()
    questions = {row["group_id"]: row["messages"][-1]["content"] for row in prompts}
    rollouts = table_of(folder, "rollouts", key).to_pylist()
    return [(questions[row["group_id"]], row["text"]) for row in rollouts]


def _cost(folder: Path, stage: str, key: str) -> dict[str, Any]:
    """What run_info says of the judge."""
    info = read_json(folder / path_of(f"run_info/{stage}", key))
    return dict(info["rewards"]["judge"])


def test_what_a_judge_has_said_is_kept(copy: Path, server: JudgeServer) -> None:
    answers = _answers(copy, "i0001")
    distinct = len(set(answers))
    question, text = answers[0]

    def behaviour(request: dict[str, Any]) -> Answer:
        said = str(request["messages"][0]["content"])
        hard = f": {question}\n" in said and f"ANSWER>>>\n{text}\n<<<" in said
        return Answer(UNREADABLE if hard else "Score: 8")

    server.behaviour = behaviour
    _set_rewards(copy, _judge(server), weight=1.0, errors=0.0)
    refused = repro(copy, STEP, check=False)
    assert refused.returncode != 0 and "Traceback" not in refused.stderr
    assert f"no score in the judge's reply {UNREADABLE!r}" in refused.stderr
    assert _asked(server) == distinct

    # The verdicts outlived the step that failed, and what other rewards count for is none of their business.
    _set_rewards(copy, _judge(server), weight=2.0, errors=0.5)
    assert stages_run(repro(copy, STEP)) == ["check", STEP]
    assert _asked(server) == 0
    cost = _cost(copy, "score_rollouts", "i0001")
    assert (cost["asked"], cost["stored"], cost["tokens"]) == (0, distinct, 0)
    scores = table_of(copy, "scores", "i0001")
    for answer, row in zip(answers, scores.to_pylist(), strict=True):
        [[reply, _]] = json.loads(row["judge_verdicts"])["votes"]
        if answer == (question, text):
            assert reply == UNREADABLE
            assert row["reward"] is row["reward_judge"] is None and "no score" in row["error"]
        else:
            assert reply == "Score: 8" and row["error"] is None and row["reward_judge"] == 0.8
            assert row["reward"] == 2 * row["reward_numeric_answer"] + 0.5 * 0.8

    # As in a clone that pulled its tables; DVC takes the old table away before the step starts.
    for file in (copy / FILE).parent.glob(f"{FILE.name}*"):
        file.unlink()
    assert stages_run(repro(copy, "--force", "--single-item", STEP)) == [STEP]
    assert table_of(copy, "scores", "i0001").equals(scores)
    assert _asked(server) == 0

    _set_rewards(copy, _judge(server, rubric="10: right and polite"), weight=2.0, errors=0.5)
    repro(copy, STEP)
    assert _asked(server) == distinct
    cost = _cost(copy, "score_rollouts", "i0001")
    assert (cost["asked"], cost["stored"], cost["tries"]) == (distinct, 0, distinct)
    assert cost["tokens"] == 30 * distinct
    assert 0 < cost["seconds_median"] <= cost["seconds_longest"]


def test_a_re_score_and_the_recipe_share_their_verdicts(copy: Path, server: JudgeServer) -> None:
    score = {"rewards": [_judge(server)]}
    edit_params(
        copy,
        recipes__judged={"extends": "grpo", "score_rollouts": score},
        rescores__judged={"recipe": "judged"},
    )
    distinct = {key: len(set(_answers(copy, key))) for key in ("i0001", "i0002")}
    run(copy, "rollbook", "rescore", "--recipe", "judged", "--iterations", "i0001")
    assert _asked(server) == distinct["i0001"]

    assert len(stages_run(run(copy, "rollbook", "rescore", "--stage", "judged"))) == 2
    assert _asked(server) == distinct["i0002"]
    costs = {key: _cost(copy, "rescore_rollouts/judged", key) for key in distinct}
    assert [costs[key]["asked"] for key in distinct] == [0, distinct["i0002"]]
    assert costs["i0001"]["stored"] == distinct["i0001"]
    assert table_of(copy, "rescores/judged", "i0002")["reward"].unique().to_pylist() == [0.35]

    forced = [f"rescores/dvc.yaml:rescore_rollouts@judged-{key}" for key in distinct]
    assert stages_run(repro(copy, "--force", "--single-item", *forced)) == forced
    assert _asked(server) == 0
