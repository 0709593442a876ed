from typing import Any

import polars as pl
import pytest

from rollbook.project.run.run import Run
from rollbook.views.mlflow.rollout_view import readable, sample
from rollbook.views.mlflow.sync import bring_up_to_date
from tests.unit.views.mlflow.conftest import Shown
from tests.unit.views.mlflow.project import Project


def test_the_sample_goes_from_the_lowest_reward_to_the_highest() -> None:
    rewards = [0.9, 0.1, None, 0.5, 0.7, 0.3]
    frame = pl.DataFrame({"rollout_id": list("abcdef"), "reward": rewards, "greedy": False})
    # in order: c (null), b .1, f .3, d .5, e .7, a .9; of 3 the first, the middle (2.5 rounds to 2) and the last
    assert [row["rollout_id"] for row in sample(frame, 3)] == ["c", "f", "a"]
    assert [row["rollout_id"] for row in sample(frame, 99)] == list("cbfdea")
    assert [row["rollout_id"] for row in sample(frame, 1)] == ["c"]
    assert sample(frame, 0) == []
    assert sample(frame.clear(), 3) == []
    best = pl.col("rollout_id") == "a"
    assert [row["rollout_id"] for row in sample(frame.with_columns(greedy=best), 99)] == list(
        "cbfde"
    )


def traces_of(project: Project) -> list[Any]:
    bring_up_to_date(Run())
    shown = Shown()
    run = shown.iterations["i0001"][0]
    return sorted(
        shown.client.search_traces(locations=[shown.experiment_id], run_id=run.info.run_id),
        key=lambda trace: trace.info.request_time,
    )


def test_a_trace_shows_prompt_completion_and_ids() -> None:
    traces = traces_of(Project(1).finish("i0001"))
    rows = {row["rollout_id"]: row for row in readable(Run(), "i0001").to_dicts()}
    assert len(traces) == 6
    for trace in traces:
        row = rows[trace.info.client_request_id]
        [span] = trace.data.spans
        assert span.inputs == {"messages": row["messages"], "prompt": row["prompt"]}
        assert span.outputs == {"text": row["text"]}
        assert span.get_attribute("group_id") == row["group_id"]
        assert span.get_attribute("advantage") == row["advantage"]
        assert span.get_attribute("seed") == row["seed"]
        assert trace.info.token_usage == {
            "input_tokens": 3,
            "output_tokens": 2,
            "total_tokens": 5,
        }


def test_rewards_are_feedback_and_the_answer_an_expectation() -> None:
    traces = traces_of(Project(1).finish("i0001"))
    rows = {row["rollout_id"]: row for row in readable(Run(), "i0001").to_dicts()}
    for trace in traces:
        row = rows[trace.info.client_request_id]
        values = {
            item.name: (item.feedback or item.expectation).value for item in trace.info.assessments
        }
        assert values == {
            "reward": row["reward"],
            "reward_numeric_answer": row["reward"],
            "advantage": row["advantage"],
            "reference_answer": row["reference_answer"],
        }
        [said] = [item.rationale for item in trace.info.assessments if item.name == "reward"]
        assert said.endswith("the answer ended by stop after 2 tokens")
        assert trace.info.request_preview == row["messages"][-1]["content"]
    # lowest rewards first
    assert [rows[trace.info.client_request_id]["reward"] for trace in traces] == [0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("count", [0, 2])
def test_the_number_of_traces_is_a_setting(count: int) -> None:
    project = Project(1).finish("i0001")
    project.configure({"i0001": "i0000"}, tracking={"experiment": "other", "traces": count})
    bring_up_to_date(Run())
    shown = Shown("other")
    assert len(shown.client.search_traces(locations=[shown.experiment_id])) == count
