import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rollbook.core.errors import ArtifactError
from rollbook.rl.scoring.inputs import ids_at, inputs_of, packed, rows_at, scoring_order, unpacked
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
    whole = list(inputs_of(prompts, rollouts))
    assert list(inputs_of(prompts, rollouts.slice(1, 4))) == whole[1:5]
    turned = pa.concat_tables([rollouts.slice(4), rollouts.slice(0, 4)])
    assert list(inputs_of(prompts, turned)) == [*whole[4:], *whole[:4]]
    assert list(inputs_of(prompts.take([2, 0, 1]), rollouts)) == whole
    assert list(inputs_of(prompts, rollouts.slice(0, 0))) == []


def test_any_rows_are_found_as_in_a_list() -> None:
    prompts, rollouts, _ = tables()
    turned = pa.concat_tables([rollouts.slice(4), rollouts.slice(0, 4)])
    for table_ in (rollouts, turned):
        rows = inputs_of(prompts, table_)
        whole = list(rows)
        assert (rows[2], rows[-1], rows[1:4]) == (whole[2], whole[-1], whole[1:4])
        places = np.array([5, 0, 1, 3])
        wanted = [whole[place] for place in places]
        assert rows_at(rows, places) == rows_at(whole, places) == wanted
        assert ids_at(rows, [5, 0]) == ids_at(whole, [5, 0])
        assert unpacked(pickle.loads(pickle.dumps(packed(rows, places)))) == wanted
        assert unpacked(packed(whole, places)) == wanted
        with pytest.raises(IndexError):
            rows[6]


def test_the_order_of_scoring_is_that_of_ids() -> None:
    prompts = prompt_rows(2)
    rollouts = with_greedy(prompts, [["3", "4"], ["5", "6"]], ["4", "6"])
    rollouts[1]["finish_reason"] = "error"
    stored = table("rollouts", rollouts)
    rows = inputs_of(table("prompts", prompts), stored.take([3, 0, 5, 1, 4, 2]))
    ids = [(row.group_id, row.greedy, row.rollout_id) for row in rows]
    for given in (rows, list(rows)):
        order, groups = scoring_order(given)
        assert [ids[place] for place in order] == sorted(
            ids[place] for place in range(6) if rows[place].finish_reason != "error"
        )
        assert len(order) == 5
        assert [[ids[a][0] == ids[b][0] for a in range(6)] for b in range(6)] == [
            [groups[a] == groups[b] for a in range(6)] for b in range(6)
        ]


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
    assert list(by_prompt) == list(inputs_of(prompts, rollouts))


def test_a_missing_prompt_is_named() -> None:
    prompts, rollouts, rows = tables()
    with pytest.raises(ArtifactError, match=rf"2 of 6 rollouts .*{rows[2]['rollout_id']}"):
        inputs_of(prompts.take([0, 2]), rollouts)


def test_greedy_rollouts_are_marked() -> None:
    prompts = prompt_rows(2)
    rollouts = table("rollouts", with_greedy(prompts, [["3"], ["5"]], ["4", "6"]))
    marks = [each.greedy for each in inputs_of(table("prompts", prompts), rollouts)]
    assert marks == [False, True, False, True]
