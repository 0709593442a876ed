"""The judge against a real HTTP server on this machine."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from rollbook.components.rewards.base import Reward, RewardInput, RewardResult, run_info_of
from rollbook.components.rewards.outcomes import outcomes_of
from rollbook.rl.scoring.scorer import score_groups
from tests.processes import PYTHONPATH
from tests.unit.components.rewards.judge_server import Answer, JudgeServer, judge_server
from tests.unit.components.rewards.rows import reward, row


@pytest.fixture
def server() -> Iterator[JudgeServer]:
    with judge_server() as running:
        yield running


def judge(server: JudgeServer, **options: Any) -> Reward:
    settings = {"first_wait": 0.01, "timeout": 5.0, "model": "m", **options}
    return reward("judge", base_url=server.base_url, **settings)


def rows(*texts: str, group: int = 0) -> list[RewardInput]:
    group_id = f"i0001/{group:016x}"
    return [
        row(text, "7", place, rollout_id=f"{group_id}/{place:02d}", group_id=group_id)
        for place, text in enumerate(texts)
    ]


def only(outcomes: list[RewardResult]) -> RewardResult:
    (outcome,) = outcomes
    return outcome


def content_of(request: dict[str, Any]) -> str:
    (message,) = request["messages"]
    return str(message["content"])


def test_asks_and_scales_the_score(project: Path, server: JudgeServer) -> None:
    server.behaviour = lambda body: Answer(
        "Good.\nScore: 10" if "seven" in content_of(body) else "Score: 2.5"
    )
    first, second = outcomes_of(judge(server, rubric="10: right"), rows("seven", "eight"))
    assert (first.value, second.value) == (1.0, 0.25)
    assert first.log["judge_tokens"] == 30
    assert first.log["judge_spread"] == 0.0
    request = server.requests[0]
    assert {key: request[key] for key in ("model", "temperature", "max_tokens")} == {
        "model": "m",
        "temperature": 0.0,
        "max_tokens": 1024,
    }
    assert "seed" not in request
    for part in ("user: 3+4=", "# Reference answer\n7", "10: right", "from 0 to 10"):
        assert part in content_of(request)
    assert "authorization" not in server.headers[0]


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ("Score: 0", 0.0),
        ("**Score:** 7/10.", 0.7),
        ("score = 7.5 out of 10", 0.75),
        ("I thought Score: 9, but no.\nScore: 3", 0.3),
    ],
)
def test_reads_scores_as_models_write_them(
    project: Path, server: JudgeServer, reply: str, value: float
) -> None:
    server.behaviour = lambda _: Answer(reply)
    assert only(outcomes_of(judge(server), rows("x"))).value == pytest.approx(value)


@pytest.mark.parametrize(
    "reply", ["", "I refuse.", "Score: none", "Score: 11", "Score: -3", "Score: 1e5", "score 7kg"]
)
def test_a_reply_that_cannot_be_read_is_an_error_and_not_0(
    project: Path, server: JudgeServer, reply: str
) -> None:
    server.behaviour = lambda _: Answer(reply)
    outcome = only(outcomes_of(judge(server), rows("x")))
    assert outcome.value is None
    assert outcome.error is not None
    assert outcome.error.startswith("judge: ")
    assert json.loads(outcome.log["judge_verdicts"])["votes"] == [[reply, 30]]


def test_a_repaired_pattern_reads_the_stored_replies(project: Path, server: JudgeServer) -> None:
    server.behaviour = lambda _: Answer("Grade 8")
    assert only(outcomes_of(judge(server), rows("x"))).value is None
    repaired = judge(server, score_pattern="Grade ([0-9]+)")
    assert only(outcomes_of(repaired, rows("x"))).value == 0.8
    assert len(server.requests) == 1


def test_criteria_give_partial_credit(project: Path, server: JudgeServer) -> None:
    reply = 'As in {"right": 0}: {"scores": {"right": 1, "clear": 0.5, "more": "x"}} done'
    server.behaviour = lambda _: Answer(reply)
    scorer = judge(server, criteria={"right": 3, "clear": 1}, highest=1)
    outcome = only(outcomes_of(scorer, rows("x")))
    assert outcome.value == pytest.approx((3 * 1 + 0.5) / 4)
    assert (outcome.log["judge_right"], outcome.log["judge_clear"]) == (1.0, 0.5)
    assert "right, clear" in content_of(server.requests[0])


@pytest.mark.parametrize(
    "reply",
    [
        '{"right": 1}',
        '{"right": 1, "clear": true}',
        '{"right": 1, "clear": NaN}',
        "right: 1, clear: 1",
        "{" * 5000,
    ],
)
def test_a_criterion_without_a_score_is_an_error(
    project: Path, server: JudgeServer, reply: str
) -> None:
    server.behaviour = lambda _: Answer(reply)
    outcome = only(outcomes_of(judge(server, criteria={"right": 1, "clear": 1}), rows("x")))
    assert (outcome.value, outcome.error is not None) == (None, True)


def test_votes_are_averaged_and_their_spread_is_logged(project: Path, server: JudgeServer) -> None:
    server.behaviour = lambda body: Answer(f"Score: {body['seed']}")
    scorer = judge(server, votes=3, seed=2, temperature=0.7, label="grader")
    outcome = only(outcomes_of(scorer, rows("x")))
    assert outcome.value == pytest.approx((0.2 + 0.3 + 0.4) / 3)
    assert outcome.log["grader_spread"] == pytest.approx((2 / 3) ** 0.5 / 10)
    assert outcome.log["grader_tokens"] == 90


def test_one_unreadable_vote_is_an_error(project: Path, server: JudgeServer) -> None:
    server.behaviour = lambda body: Answer("?" if body["seed"] == 1 else "Score: 5")
    outcome = only(outcomes_of(judge(server, votes=2, seed=0), rows("x")))
    assert outcome.value is None


def test_more_votes_ask_only_for_the_new_ones(project: Path, server: JudgeServer) -> None:
    outcomes_of(judge(server, votes=1), rows("x"))
    outcomes_of(judge(server, votes=3, temperature=0.0), rows("x"))
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    "trouble",
    [
        Answer(status=429, headers={"Retry-After": "0"}),
        Answer(status=500, body=b"oops"),
        Answer(status=503),
        Answer(hang_up=True),
        Answer(body=b"<html>proxy</html>"),
        Answer(body=b'{"choices": []}'),
        Answer(body=b"\xff\xfe"),
    ],
)
def test_what_passes_is_asked_again(project: Path, server: JudgeServer, trouble: Answer) -> None:
    server.behaviour = lambda _: trouble if len(server.requests) < 3 else Answer("Score: 10")
    scorer = judge(server)
    assert only(outcomes_of(scorer, rows("x"))).value == 1.0
    assert len(server.requests) == 3
    info = scorer.run_info()
    assert (info["asked"], info["tries"], info["tokens"]) == (1, 3, 30)


@pytest.mark.parametrize("slow", [Answer(delay=1.5), Answer(drip=0.05)])
def test_a_slow_endpoint_meets_the_time_limit(
    project: Path, server: JudgeServer, slow: Answer
) -> None:
    server.behaviour = lambda _: slow
    start = time.monotonic()
    outcome = only(outcomes_of(judge(server, timeout=0.3, retries=1), rows("x")))
    assert time.monotonic() - start < 1.4
    assert outcome.error is not None
    assert "no reply within 0.3 s (2 tries)" in outcome.error


def test_waits_grow_and_retry_after_is_heeded(project: Path, server: JudgeServer) -> None:
    arrivals: list[float] = []

    def behaviour(_: dict[str, Any]) -> Answer:
        arrivals.append(time.monotonic())
        if len(arrivals) == 3:
            return Answer(status=429, headers={"Retry-After": "1"})
        return Answer(status=503) if len(arrivals) < 4 else Answer()

    server.behaviour = behaviour
    outcomes_of(judge(server, first_wait=0.1), rows("x"))
    waits = [later - earlier for earlier, later in itertools.pairwise(arrivals)]
    assert waits[0] >= 0.07
    assert waits[1] >= 0.14
    assert waits[2] >= 1.0


def test_a_refusal_is_an_error_at_once_for_its_row_alone(
    project: Path, server: JudgeServer
) -> None:
    server.behaviour = lambda body: (
        Answer(status=400, body=b"too long") if "bad" in content_of(body) else Answer()
    )
    bad, good = outcomes_of(judge(server), rows("bad", "good"))
    assert bad.error is not None
    assert "status 400: too long" in bad.error
    assert good.value == 0.7
    assert len(server.requests) == 2


def test_a_wrong_key_is_not_sent_for_every_row_and_never_shown(
    project: Path, server: JudgeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sk-secret")
    server.behaviour = lambda _: Answer(status=401, body=b"wrong key: sk-secret")
    scorer = judge(server, api_key_env="JUDGE_KEY", concurrency=1)
    outcomes = outcomes_of(scorer, rows(*"abcdefgh"))
    assert all(outcome.error and "status 401" in outcome.error for outcome in outcomes)
    assert len(server.requests) <= 2
    assert server.headers[0]["authorization"] == "Bearer sk-secret"
    assert "sk-secret" not in str(outcomes)
    assert "sk-secret" not in str(scorer.settings())


def test_a_missing_key_is_an_error(project: Path, server: JudgeServer) -> None:
    outcome = only(outcomes_of(judge(server, api_key_env="NO_SUCH_KEY"), rows("x")))
    assert outcome.error is not None
    assert "NO_SUCH_KEY holds no key" in outcome.error
    assert server.requests == []


def test_nobody_listens(project: Path) -> None:
    with judge_server() as server:
        scorer = judge(server, retries=1)
    start = time.monotonic()
    outcomes = outcomes_of(scorer, rows(*"abcdefgh"))
    assert all(outcome.error and "cannot be reached" in outcome.error for outcome in outcomes)
    assert time.monotonic() - start < 2


@pytest.mark.parametrize("status", [302, 307])
def test_redirects_do_not_carry_the_key_away(
    project: Path, server: JudgeServer, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sk-secret")
    with judge_server() as elsewhere:
        target = {"Location": f"{elsewhere.base_url}/chat/completions"}
        server.behaviour = lambda _: Answer(status=status, headers=target)
        outcome = only(outcomes_of(judge(server, api_key_env="JUDGE_KEY"), rows("x")))
        assert outcome.error is not None
        assert f"status {status}" in outcome.error
        assert elsewhere.requests == []


def test_concurrency_reaches_across_groups_and_has_a_limit(
    project: Path, server: JudgeServer
) -> None:
    server.behaviour = lambda _: Answer(delay=0.03)
    table = [each for group in range(12) for each in rows("a", f"b{group}", group=group)]
    columns = score_groups([judge(server, concurrency=5)], table)
    assert columns["reward"].to_pylist() == [pytest.approx(0.7)] * 24
    assert server.most_at_once == 5
    # "a" is the same question in every group, and is asked once.
    assert len(server.requests) == 13


def test_a_run_again_asks_nothing_and_says_the_same(project: Path, server: JudgeServer) -> None:
    texts = ("a", "b", "c")
    server.behaviour = lambda _: Answer(f"Score: {len(server.requests)}")
    first = outcomes_of(judge(server), rows(*texts))
    again = judge(server)
    assert outcomes_of(again, rows(*texts)) == first
    assert len(server.requests) == 3
    assert again.run_info() == {
        "asked": 0,
        "stored": 3,
        "tries": 0,
        "tokens": 0,
        "seconds_median": None,
        "seconds_longest": None,
    }


@pytest.mark.parametrize(
    "change",
    [
        {"model": "other"},
        {"temperature": 0.5},
        {"max_tokens": 10},
        {"seed": 1},
        {"rubric": "other"},
        {"highest": 5},
        {"request": {"top_p": 0.5}},
    ],
)
def test_what_matters_is_asked_again(
    project: Path, server: JudgeServer, change: dict[str, Any]
) -> None:
    server.behaviour = lambda _: Answer("Score: 1")
    outcomes_of(judge(server), rows("x"))
    outcomes_of(judge(server, timeout=9, concurrency=1, label="other", weight=2), rows("x"))
    assert len(server.requests) == 1
    outcomes_of(judge(server, **change), rows("x"))
    assert len(server.requests) == 2


@pytest.mark.parametrize("cache", [None, ".dvc/cache", "elsewhere"])
def test_a_clone_reads_the_verdicts_of_its_tables(
    project: Path, server: JudgeServer, cache: str | None
) -> None:
    columns = score_groups([judge(server, label="grader")], rows("a", "b"))
    folder = project / "artifacts" / "scores"
    folder.mkdir(parents=True)
    (folder / "i0002.parquet").write_bytes(b"PAR1 damaged")
    table = folder / "i0001.parquet"
    if cache is not None:  # as DVC does before it runs a stage again
        (project / ".dvc" / "config").write_text(f"[cache]\n    dir = {project / cache}\n")
        table = project / cache / "files" / "md5" / "01" / "23456789abcdef0123456789abcdef"
        table.parent.mkdir(parents=True)
        (project / "dvc.lock").write_text(
            "schema: '2.0'\nstages:\n  score_rollouts@i0001:\n    cmd: x\n    outs:\n"
            "    - path: artifacts/scores/i0001.parquet\n      hash: md5\n"
            "      md5: 0123456789abcdef0123456789abcdef\n      size: 1\n"
        )
    pq.write_table(pa.table(columns), table)
    for file in (project / ".dvc" / "tmp" / "rollbook").glob("verdicts.sqlite*"):
        file.unlink()
    assert score_groups([judge(server, label="grader")], rows("a", "b")) == columns
    assert len(server.requests) == 2


def test_outside_of_a_project_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: JudgeServer
) -> None:
    monkeypatch.chdir(tmp_path)
    assert only(outcomes_of(judge(server), rows("x"))).value == 0.7
    assert list(tmp_path.iterdir()) == []


def test_a_killed_scorer_goes_on_where_it_was(project: Path, server: JudgeServer) -> None:
    def behaviour(body: dict[str, Any]) -> Answer:
        return Answer(delay=30 if content_of(body).count("slow") else 0)

    server.behaviour = behaviour
    code = (
        "from tests.unit.components.rewards.test_judge import *\n"
        f"scorer = reward('judge', base_url={server.base_url!r}, model='m', first_wait=0.01, timeout=5.0)\n"
        "score_groups([scorer], rows('a', 'b', 'slow'))\n"
    )
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    process = subprocess.Popen([sys.executable, "-c", code], cwd=project, env=environment)
    deadline = time.monotonic() + 30
    while len(server.requests) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    server.behaviour = lambda _: Answer()
    assert [each.value for each in outcomes_of(judge(server), rows("a", "b", "slow"))] == [0.7] * 3
    assert len(server.requests) == 4


def test_leaves_no_thread_behind(project: Path, server: JudgeServer) -> None:
    outcomes_of(judge(server), rows(*"abcdefgh"))
    deadline = time.monotonic() + 2
    while any("(work)" in thread.name for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_templates_of_the_users_own(project: Path, server: JudgeServer) -> None:
    (project / "judge.jinja").write_text("{{ columns.level }}/{{ text }}/{{ highest }}")
    scorer = judge(server, template="judge.jinja", highest=20)
    assert scorer.data_files() == ["judge.jinja"]
    asked, lacking = outcomes_of(
        scorer, [row("{{ rubric }}", index=0, columns={"level": 3}), row("x", index=1)]
    )
    # What a completion says is never Jinja.
    assert content_of(server.requests[0]) == "3/{{ rubric }}/20"
    assert asked.value == 0.35
    assert lacking.error is not None
    assert "the template cannot be rendered" in lacking.error


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"template": "{{ txt }}"}, "no variable 'txt'; did you mean 'text'"),
        ({"template": "Grade it."}, "shows the judge no completion"),
        ({"template": "{% if %}{{ text }}"}, "line 1 is not valid Jinja"),
        ({"lowest": 3, "highest": 3}, "lowest 3 must be below highest 3"),
        ({"api_key_env": "sk-abc"}, "the name of an environment variable"),
        ({"request": {"model": "x"}}, "model has its own place"),
        ({"criteria": {"spread": 1}}, "spread is a column of the judge"),
        ({"criteria": {"right": 0}}, "greater than 0"),
        ({"score_pattern": "no group"}, "exactly one group"),
        ({"votes": 0}, "greater than"),
    ],
)
def test_what_cannot_work_is_refused_when_built(
    project: Path, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValidationError, match=re.escape(reason)):
        reward("judge", base_url="http://localhost:1/v1", model="m", **options)
    with pytest.raises(ValidationError, match="pattern"):
        reward("judge", base_url="localhost:1/v1", model="m")


def test_votes_that_cannot_differ_are_pointed_out(project: Path) -> None:
    assert reward("judge", base_url="http://x/v1", model="m", votes=3).cautions()
    assert not reward("judge", base_url="http://x/v1", model="m", votes=3, temperature=1).cautions()


def test_a_damaged_store_is_an_error_and_not_a_score(project: Path, server: JudgeServer) -> None:
    file = project / ".dvc" / "tmp" / "rollbook" / "verdicts.sqlite"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"no database" * 100)
    columns = score_groups([judge(server)], rows("a", "b"), max_error_share=1.0)
    assert columns["reward"].to_pylist() == [None, None]
    assert "DatabaseError" in columns["error"].to_pylist()[0]
    assert server.requests == []


def test_cost_is_told_under_the_label_also_from_inside_another_reward(
    project: Path, server: JudgeServer
) -> None:
    inside = reward("shuffled", reward=judge(server, label="grader"))
    numeric = reward("numeric_answer")
    score_groups([numeric, inside], rows("a", "b"))
    assert len(server.requests) == 2
    info = run_info_of([numeric, inside])["rewards"]["grader"]
    assert (info["asked"], info["stored"], info["tokens"]) == (2, 0, 60)
    assert 0 < info["seconds_median"] <= info["seconds_longest"]
    assert run_info_of([numeric]) == {}
