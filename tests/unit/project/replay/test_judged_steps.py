"""Replays of steps that asked a judge: what it said then, and where it failed, is read again, and nobody is asked."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ruamel.yaml import YAML

from rollbook.components.rewards.base import RewardResult
from rollbook.components.rewards.outcomes import outcomes_of
from rollbook.components.rewards.recorded_replies import FOLDER, LACKING, NOT_RECORDED
from rollbook.core.errors import RollbookError
from rollbook.core.own_code import OLD_FILES
from rollbook.dvc.cache import cached_path
from rollbook.dvc.lock import Entry, read_entries
from rollbook.project.plan import make_plan
from rollbook.project.plan_file import PLAN_FILE
from rollbook.project.replay.code_trees import CodeTree
from rollbook.project.replay.replies import JUDGE, put_replies
from rollbook.project.replay.stored import StoredArtifacts
from rollbook.settings.params import read_params
from rollbook.tables.artifacts import path_of, write_json
from tests.e2e.projects import commit, git
from tests.processes import PYTHONPATH
from tests.stored_iterations import settings, store
from tests.unit.components.rewards.judge_server import Answer, JudgeServer, judge_server
from tests.unit.components.rewards.rows import reward, row
from tests.unit.project.replay.finished_steps import DVC_CONFIG, IGNORED, replay, run_step, verdict

SCORE = "score_rollouts@i0001"
RESCORE = "rescore_rollouts@longer-i0001"
SCORES = path_of("scores", "i0001")


def _judge(server: JudgeServer, rubric: str) -> dict[str, Any]:
    quick = {"timeout": 5.0, "retries": 0, "first_wait": 0.01}
    return {"name": "judge", "base_url": server.base_url, "model": "m", "rubric": rubric, **quick}


def _answer(request: dict[str, Any]) -> Answer:
    """Grades short answers, and refuses to see a long one."""
    if "long answer" in request["messages"][0]["content"]:
        return Answer(status=400, body=b"too long for me")
    return Answer("Score: 7")


@pytest.fixture(scope="module")
def server() -> Iterator[JudgeServer]:
    with judge_server(_answer) as running:
        yield running


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory, server: JudgeServer) -> Path:
    """Rollouts scored and re-scored by a judge who failed one of eight; look, do not touch."""
    folder = tmp_path_factory.mktemp("judged") / "project"
    folder.mkdir()
    with contextlib.chdir(folder):
        raw = settings()
        for name, rubric in (("grpo", "10: right"), ("long", "10: long")):
            rewards = [{"name": "numeric_answer"}, _judge(server, rubric)]
            score = {"rewards": rewards, "max_error_share": 0.5}
            raw["recipes"][name]["score_rollouts"] = score
        with Path("params.yaml").open("w") as stream:
            YAML().dump(raw, stream)
        Path(".gitignore").write_text(IGNORED)
        Path(".dvc").mkdir()
        Path(".dvc/config").write_text(DVC_CONFIG)
        git(folder, "init", "--quiet")
        commit(folder, "Before it ran")
        store("i0001")
        write_json(make_plan(read_params()), PLAN_FILE)
        run_step("score_rollouts", "i0001")
        run_step("rescore_rollouts", "i0001", "longer")
    assert len(server.requests) == 8  # four different answers, under two rubrics
    return folder


@pytest.fixture
def copy(
    judged: Path, server: JudgeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The judged project as the current folder, and a judge who has changed his mind."""
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    folder = tmp_path / "copy"
    shutil.copytree(judged, folder)
    monkeypatch.chdir(folder)
    server.requests.clear()
    server.behaviour = lambda _: Answer("Score: 1")
    return folder


@pytest.mark.parametrize("step", [SCORE, RESCORE])
def test_replies_and_failures_are_those_that_were_recorded(
    copy: Path, server: JudgeServer, step: str
) -> None:
    table = pq.read_table(SCORES)
    assert table["error"].null_count == 7
    [failed] = [row for row in table.to_pylist() if row["error"]]
    stored = json.loads(failed["judge_verdicts"])
    assert stored["votes"] == [None] and "too long for me" in stored["error"]
    result = replay(step)
    assert result.exit_code == 0, result.output
    assert verdict(step)["outcome"] == "identical"
    assert server.requests == []


def test_an_endpoint_that_is_gone_is_not_missed(copy: Path, server: JudgeServer) -> None:
    server.close()
    result = replay(SCORE, RESCORE)
    assert result.exit_code == 0, result.output
    assert "2 steps: 2 identical" in result.output


def test_what_was_not_recorded_is_not_asked_for(copy: Path, server: JudgeServer) -> None:
    [entry] = read_entries()
    cached_path(entry.outputs[SCORES.as_posix()]).unlink()
    SCORES.unlink()
    result = replay(SCORE)
    assert result.exit_code == 2, result.output
    found = verdict(SCORE)
    assert found["outcome"] == "not replayed"
    assert found["problem"].startswith(
        "8 replies of a judge are not recorded, the first about i0001/"
    )
    assert server.requests == []


def test_errors_of_older_tables_are_not_known(project: Path) -> None:
    asked = row("x", "7", rollout_id="i0001/0123456789abcdef/00")

    def outcome() -> RewardResult:
        judge = reward("judge", base_url="http://127.0.0.1:9/v1", model="m", retries=0)
        [found] = outcomes_of(judge, [asked])
        return found

    def replayed(content: Mapping[str, Any]) -> RewardResult:
        FOLDER.mkdir(parents=True, exist_ok=True)
        columns = {"rollout_id": [asked.rollout_id], "judge_verdicts": [json.dumps(content)]}
        pq.write_table(pa.table(columns), FOLDER / "i0001.parquet")
        return outcome()

    before = outcome()
    stored = json.loads(before.log["judge_verdicts"])

    assert replayed(stored) == before
    assert not LACKING.exists()
    older = replayed({"key": stored["key"], "votes": [None]})
    assert older.error == f"judge: {NOT_RECORDED}"
    assert LACKING.read_text() == f"{asked.rollout_id}\n"
    other = replayed({**stored, "key": "of another question"})
    assert other.error == f"judge: {NOT_RECORDED}"


def test_code_that_would_ask_again_does_not_run(project: Path, tmp_path: Path) -> None:
    tree = CodeTree(tmp_path / "tree", tmp_path, "commit 01234567")
    for package in ("pipeline", "pipeline/rewards", "stages"):
        (tree.folder / package).mkdir(parents=True)
        (tree.folder / package / "__init__.py").touch()
    for file in OLD_FILES:
        (tree.folder / file).touch()
    entry = Entry(SCORE, "score_rollouts", "i0001", "", None, {}, {}, {})
    stored = StoredArtifacts(tmp_path / "fetched", True)
    put_replies(entry, ["mine.py"], stored, tree)
    with pytest.raises(RollbookError, match="the code of commit 01234567 asks a judge again"):
        put_replies(entry, ["mine.py", JUDGE], stored, tree)
