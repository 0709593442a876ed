from typing import Any

import pyarrow as pa
import pytest

from pipeline.errors import ArtifactError
from pipeline.rewards.inputs import inputs_of
from tests.builders import prompt_rows, rollout_rows, table, with_greedy


def tables() -> tuple[pa.Table, pa.Table, list[dict[str, Any]]]:
    prompts = prompt_rows(3)
    for place, prompt in enumerate(prompts):
        prompt["difficulty"] = place
    rollouts = rollout_rows(prompts, [["3", "4"], ["5", "66"], ["7", ""]])
    rollouts[5]["finish_reason"] = "length"
    return table("prompts", prompts), table("rollouts", rollouts), rollouts


def test_every_rollout_with_its_prompt() -> None:
    prompts, rollouts, rows = tables()
    inputs = inputs_of(prompts, rollouts)
    assert [each.rollout_id for each in inputs] == [row["rollout_id"] for row in rows]
    third = inputs[3]
    assert (third.text, third.completion, third.finish_reason) == ("66", "66<eos>", "stop")
    assert third.prompt == "2+3="
    assert third.messages == [{"role": "user", "content": "2+3="}]
    assert third.reference_answer == "5"
    assert third.columns == {"difficulty": 1}
    assert third.iteration == "i0001"
    assert third.group_id == f"i0001/{third.prompt_id}"
    assert [list(each.completion_token_ids) for each in inputs] == [
        row["completion_token_ids"] for row in rows
    ]
    assert inputs[5].finish_reason == "length"
    assert not any(each.greedy for each in inputs)


def test_slices_and_chunks_are_read_right() -> None:
    prompts, rollouts, _ = tables()
    whole = inputs_of(prompts, rollouts)
    assert inputs_of(prompts, rollouts.slice(1, 4)) == whole[1:5]
    assert inputs_of(prompts, pa.concat_tables([rollouts.slice(4), rollouts.slice(0, 4)])) == [
        *whole[4:],
        *whole[:4],
    ]
    assert inputs_of(prompts.take([2, 0, 1]), rollouts) == whole
    assert inputs_of(prompts, rollouts.slice(0, 0)) == []


def test_a_set_of_its_own_keeps_its_columns_where_prompts_are_shared() -> None:
    prompt = prompt_rows(1)[0]
    twice = [
        {**prompt, "group_id": f"eval:{name}/i0001/{prompt['prompt_id']}", "set": name}
        for name in ("easy", "hard")
    ]
    rollouts = rollout_rows(twice, [["3"], ["3"]])
    prompts = pa.Table.from_pylist(twice)
    assert [each.columns["set"] for each in inputs_of(prompts, table("rollouts", rollouts))] == [
        "easy",
        "hard",
    ]


def test_joined_by_prompt_where_prompts_have_no_groups() -> None:
    prompts, rollouts, _ = tables()
    by_prompt = inputs_of(prompts.drop_columns(["group_id", "iteration"]), rollouts)
    assert by_prompt == inputs_of(prompts, rollouts)


def test_a_missing_prompt_is_named() -> None:
    prompts, rollouts, rows = tables()
    with pytest.raises(ArtifactError, match=rf"2 of 6 rollouts .*{rows[2]['rollout_id']}"):
        inputs_of(prompts.take([0, 2]), rollouts)


def test_greedy_rollouts_are_marked() -> None:
    prompts = prompt_rows(2)
    rollouts = table("rollouts", with_greedy(prompts, [["3"], ["5"]], ["4", "6"]))
    marks = [each.greedy for each in inputs_of(table("prompts", prompts), rollouts)]
    assert marks == [False, True, False, True]
