"""Two versions of a table: what differs first, and how much."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollbook.project.replay.differing import difference
from rollbook.project.replay.verdict import Difference, Outcome
from rollbook.tables.artifacts import METADATA_KEY
from tests.stored_iterations import tables_of

ROLLOUTS = tables_of()["rollouts"]
SCORES = tables_of()["scores"]


def _compared(
    old: pa.Table, new: pa.Table, kind: str, tolerance: float = 0.0, **written: Any
) -> Difference:
    pq.write_table(old, "old.parquet")
    pq.write_table(new, "new.parquet", **written)
    return difference(Path("old.parquet"), Path("new.parquet"), kind, tolerance)


def _with(table: pa.Table, column: str, row: int, value: Any) -> pa.Table:
    values = table[column].to_pylist()
    values[row] = value
    place = table.column_names.index(column)
    dtype = table.schema.field(column).type
    return table.set_column(place, column, pa.array(values, dtype))


def test_the_first_row_column_and_both_values(project: Path) -> None:
    changed = _with(_with(SCORES, "reward", 5, 0.25), "reward_numeric_answer", 3, None)
    found = _compared(SCORES, changed, "scores")
    assert found.outcome is Outcome.DIFFERENT
    identity = SCORES["rollout_id"][3].as_py()
    assert found.text == (
        f"rollout_id {identity}, reward_numeric_answer: None instead of 0.0; 2 of 8 rows differ, "
        "values: reward 1, reward_numeric_answer 1"
    )
    assert (found.facts["row"], found.facts["row_id"]) == (3, identity)
    assert found.facts["cells"] == {"reward": 1, "reward_numeric_answer": 1}


def test_items_of_lists_are_named(project: Path) -> None:
    logprobs = ROLLOUTS["sampling_logprobs"][3].as_py()
    found = _compared(
        ROLLOUTS,
        _with(ROLLOUTS, "sampling_logprobs", 3, [*logprobs[:4], -0.75, *logprobs[5:]]),
        "rollouts",
    )
    assert "sampling_logprobs[4]: -0.75 instead of -0.5; 1 of 8 rows" in found.text
    longer = _compared(
        ROLLOUTS, _with(ROLLOUTS, "sampling_logprobs", 3, [*logprobs, -0.5]), "rollouts"
    )
    assert f"sampling_logprobs: {len(logprobs) + 1} items instead of {len(logprobs)}" in longer.text


def test_messages_within_lists_of_structs(project: Path) -> None:
    prompts = tables_of()["prompts"]
    other = _with(prompts, "messages", 1, [{"role": "user", "content": "2+4="}])
    found = _compared(prompts, other, "prompts")
    assert "messages[0]: {'role': 'user', 'content': '2+4='} instead of {'role'" in found.text


@pytest.mark.parametrize(
    ("tolerance", "outcome"), [(0.0, Outcome.DIFFERENT), (1e-3, Outcome.WITHIN_TOLERANCE)]
)
def test_tolerance_is_for_numbers(project: Path, tolerance: float, outcome: Outcome) -> None:
    near = _with(SCORES, "reward", 0, 1.0 + 1e-6)
    assert _compared(SCORES, near, "scores", tolerance).outcome is outcome
    far = _compared(SCORES, _with(near, "reward", 2, 1.1), "scores", tolerance)
    assert far.outcome is Outcome.DIFFERENT
    if tolerance:  # the first that is too far, and not the first that differs at all
        assert SCORES["rollout_id"][2].as_py() in far.text
    text = _with(ROLLOUTS, "text", 0, "4")
    assert _compared(ROLLOUTS, text, "rollouts", tolerance).outcome is Outcome.DIFFERENT


def test_other_bits_of_the_same_number_and_nan(project: Path) -> None:
    nan = _with(SCORES, "reward", 1, float("nan"))
    other = _with(nan, "reward", 2, 0.5)
    assert "values: reward 1" in _compared(nan, other, "scores").text
    zero = _compared(SCORES, _with(SCORES, "reward", 1, -0.0), "scores")
    assert "reward: -0.0 instead of 0.0" in zero.text


def test_nan_in_other_bits_is_the_same_content(project: Path) -> None:
    plain = np.array([np.nan] + [1.0] * 7)
    other = plain.copy()
    other.view(np.int64)[0] ^= 1
    place = SCORES.column_names.index("reward")
    old, new = (SCORES.set_column(place, "reward", pa.array(each)) for each in (plain, other))
    found = _compared(old, new, "scores")
    assert found.outcome is Outcome.SAME_CONTENT
    assert found.text == "the same values, NaN in other bits"


def test_columns_in_another_order(project: Path) -> None:
    found = _compared(SCORES, SCORES.select(SCORES.column_names[::-1]), "scores")
    assert found.outcome is Outcome.DIFFERENT
    assert found.text == "the same columns, in another order"


@pytest.mark.parametrize(
    ("old", "new", "outcome"),
    [
        (math.inf, 1.0, Outcome.DIFFERENT),
        (1.0, -math.inf, Outcome.DIFFERENT),
        (math.inf, -math.inf, Outcome.DIFFERENT),
        (math.nan, 1.0, Outcome.DIFFERENT),
        (1e308, -1e308, Outcome.DIFFERENT),
        (math.inf, math.inf, Outcome.WITHIN_TOLERANCE),
    ],
)
def test_infinite_numbers_have_no_tolerance(
    project: Path, old: float, new: float, outcome: Outcome
) -> None:
    one, other = (_with(SCORES, "reward", 3, value) for value in (old, new))
    near = _with(other, "reward", 0, 1.0 + 1e-6)
    assert _compared(one, near, "scores", 1e-3).outcome is outcome


def test_how_far_numbers_are_apart_is_the_tolerance_that_would_do(project: Path) -> None:
    logprobs = [-20.0, *ROLLOUTS["sampling_logprobs"][3].as_py()[1:]]
    old = _with(ROLLOUTS, "sampling_logprobs", 3, logprobs)
    near = _with(old, "sampling_logprobs", 3, [-20.5, *logprobs[1:-1], logprobs[-1] + 0.01])
    found = _compared(old, near, "rollouts")
    assert found.apart == pytest.approx(0.5 / 20.5)
    assert found.facts["apart"] == {"sampling_logprobs": found.apart}
    assert found.facts["of"] == 8
    assert _compared(old, near, "rollouts", found.apart).outcome is Outcome.WITHIN_TOLERANCE
    assert _compared(old, near, "rollouts", 0.99 * found.apart).outcome is Outcome.DIFFERENT


def test_no_tolerance_is_for_words_and_missing_numbers(project: Path) -> None:
    near = _with(SCORES, "reward", 0, 1.0 + 1e-6)
    assert _compared(SCORES, _with(near, "reward", 1, None), "scores").apart is None
    assert _compared(SCORES, _with(near, "reward", 1, float("inf")), "scores").apart is None
    found = _compared(ROLLOUTS, _with(ROLLOUTS, "text", 0, "4"), "rollouts")
    assert (found.apart, found.facts["apart"]) == (None, {"text": None})
    zero = _compared(SCORES, _with(SCORES, "reward", 1, -0.0), "scores")
    assert (zero.outcome, zero.apart) == (Outcome.DIFFERENT, 0.0)


def test_other_rows(project: Path) -> None:
    fewer = _compared(SCORES, SCORES.slice(0, 7), "scores")
    last = SCORES["rollout_id"][7].as_py()
    assert fewer.outcome is Outcome.DIFFERENT
    assert fewer.text.startswith(f"row 7 is nothing instead of {last}; 1 rows are missing")
    turned = _compared(SCORES, SCORES.take(pa.array([1, 0, *range(2, 8)])), "scores")
    assert turned.text.endswith("the same rows, in another order")


def test_other_columns_and_types(project: Path) -> None:
    other = SCORES.drop_columns(["error"]).append_column("mood", pa.array([1] * 8))
    found = _compared(SCORES, other, "scores")
    assert found.text.startswith("column 'error' is missing; column 'mood' is new")
    cast = SCORES.set_column(
        SCORES.column_names.index("reward"), "reward", SCORES["reward"].cast(pa.float32())
    )
    assert _compared(SCORES, cast, "scores").text == "column 'reward' is float instead of double"


def test_the_same_content_in_other_bytes_and_why(project: Path) -> None:
    other = _compared(SCORES, SCORES, "scores", compression="zstd")
    assert other.outcome is Outcome.SAME_CONTENT
    assert other.text == "other encoding, compression or row groups"

    def stating(settings: str) -> pa.Table:
        said = f'{{"settings": "{settings}", "kind": "scores"}}'.encode()
        return SCORES.replace_schema_metadata({METADATA_KEY: said})

    other = _compared(stating("a"), stating("b"), "scores")
    assert other.outcome is Outcome.SAME_CONTENT
    assert other.text == "its metadata has another digest of settings and code"


def test_a_file_that_cannot_be_read_is_different(project: Path) -> None:
    pq.write_table(SCORES, "new.parquet")
    Path("old.parquet").write_bytes(Path("new.parquet").read_bytes()[:200])
    found = difference(Path("old.parquet"), Path("new.parquet"), "scores", 0.0)
    assert found.outcome is Outcome.DIFFERENT
    assert "truncated or damaged" in found.text
