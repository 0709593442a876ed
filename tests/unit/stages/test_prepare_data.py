"""From sources to the two data tables: names, repeats, overlap, and columns of different sources."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rollbook.core.errors import DataError
from rollbook.core.ids import prompt_id_of
from rollbook.rl.context import Context, Inputs, Outputs
from rollbook.settings.config import Data
from rollbook.stages.prepare_data import Settings, prepare_data
from rollbook.tables.artifacts import read_table, write_table


def run(train: Any, evaluation: Any = None, context: Context | None = None, **data: Any) -> Outputs:
    """Runs the stage, and writes and reads its tables, so that their schema is checked."""
    settings = Settings(data=Data(train=train, evaluation=evaluation or {}, **data))
    outputs = prepare_data(settings, Inputs(), context or Context("i0000", stage="prepare_data"))
    for name, table in outputs.tables.items():
        write_table(table, "data", name)
        assert read_table(Path(f"artifacts/data/{name}.parquet"), "data")[0].equals(
            table.select(
                ["prompt_id", "messages", "reference_answer", "source", "set", *_own(table)]
            )
        )
    return outputs


def _own(table: pa.Table) -> list[str]:
    fixed = ("prompt_id", "messages", "reference_answer", "source", "set")
    return [name for name in table.column_names if name not in fixed]


def rows_file(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"name": "file", "files": f"{name}.jsonl"}


def contents(table: pa.Table) -> list[str]:
    return [messages[-1]["content"] for messages in table["messages"].to_pylist()]


def test_default_data(project: Path) -> None:
    outputs = run(["arithmetic"], {"heldout": {"name": "arithmetic", "prompts": 256}})
    train, evaluation = outputs.tables["train"], outputs.tables["evaluation"]
    assert evaluation.num_rows == 256
    assert set(train["set"].to_pylist()) == {"train"}
    assert set(evaluation["set"].to_pylist()) == {"heldout"}
    assert (
        set(train["source"].to_pylist()) == set(evaluation["source"].to_pylist()) == {"arithmetic"}
    )
    first = train.slice(0, 1).to_pylist()[0]
    assert first["prompt_id"] == prompt_id_of(first["messages"], first["reference_answer"])
    assert outputs.metrics == {
        "prompts/train": train.num_rows,
        "prompts/train/arithmetic": train.num_rows,
        "prompts/evaluation": 256,
        "prompts/evaluation/heldout": 256,
        "duplicates": 0,
        "duplicates/conflicting_answers": 0,
        "overlap": 0,
        "without_answer": 0,
    }


def test_sources_are_told_apart_and_their_columns_joined(project: Path) -> None:
    one = rows_file("one", [{"prompt": "a", "answer": "1", "level": 1}])
    two = rows_file("two", [{"prompt": "b", "score": 0.5, "level": 2.5, "tags": []}])
    three = rows_file("three", [{"prompt": "c", "tags": ["x"], "note": {"by": "me"}}])
    outputs = run([one, two, three])
    table = outputs.tables["train"]
    assert table["source"].to_pylist() == ["file", "file_2", "file_3"]
    assert table["level"].to_pylist() == [1.0, 2.5, None]
    assert table["score"].to_pylist() == [None, 0.5, None]
    assert table["tags"].to_pylist() == [None, [], ["x"]]
    assert table["note"].to_pylist() == [None, None, {"by": "me"}]
    assert outputs.metrics["prompts/train/file_2"] == 1
    assert outputs.metrics["without_answer"] == 2
    assert outputs.tables["evaluation"].num_rows == 0


def test_columns_of_different_types_are_named(project: Path) -> None:
    one = rows_file("one", [{"prompt": "a", "level": 1}])
    two = rows_file("two", [{"prompt": "b", "level": "hard"}])
    with pytest.raises(DataError, match=r"data.train.1: a column has another type.*level"):
        run([one, two])
    with pytest.raises(DataError, match=r"data.train.0: column 'level' cannot be kept"):
        run([rows_file("mixed", [{"prompt": "a", "level": 1}, {"prompt": "b", "level": "hard"}])])


def test_a_column_that_rollbook_uses_itself_is_renamed(project: Path) -> None:
    """Many data sets have a `source` of their own; the tables' own must not be overwritten by it."""
    outputs = run(
        [rows_file("a", [{"problem": "a", "source": "olympiad", "prompt_id": 3, "text": "t"}])]
    )
    (row,) = outputs.tables["train"].to_pylist()
    assert row["source"] == "file"
    assert (row["data_source"], row["data_prompt_id"], row["data_text"]) == ("olympiad", 3, "t")


def test_repeats_are_dropped_and_counted_over_all_sources(project: Path) -> None:
    context = Context("i0000", stage="prepare_data")
    one = rows_file(
        "one", [{"prompt": "a", "answer": 1}, {"prompt": "b"}, {"prompt": "a", "answer": 1}]
    )
    two = rows_file(
        "two", [{"prompt": "a", "answer": 1}, {"prompt": "a", "answer": 2}, {"prompt": "c"}]
    )
    outputs = run([one, two], context=context)
    table = outputs.tables["train"]
    assert contents(table) == ["a", "b", "c"]
    assert table["reference_answer"].to_pylist() == ["1", None, None]
    assert outputs.metrics["duplicates"] == 2
    assert outputs.metrics["duplicates/conflicting_answers"] == 1
    (warning,) = (text for text in context.warnings if "another" in text)
    assert "data.train.1: 1 prompts" in warning and "'a'" in warning


def test_evaluation_sets_are_apart(project: Path) -> None:
    """The same prompt may be in two sets, but not twice in one."""
    one = rows_file("one", [{"prompt": "a"}, {"prompt": "a"}])
    two = rows_file("two", [{"prompt": "a"}, {"prompt": "b"}])
    outputs = run(["arithmetic"], {"easy": one, "hard": two})
    table = outputs.tables["evaluation"]
    rows = list(
        zip(table["set"].to_pylist(), table["source"].to_pylist(), contents(table), strict=True)
    )
    assert rows == [("easy", "file", "a"), ("hard", "file_2", "a"), ("hard", "file_2", "b")]
    assert outputs.metrics["duplicates"] == 1
    assert outputs.metrics["prompts/evaluation/hard"] == 2


def test_overlap_is_found_whatever_the_answer_and_white_space(project: Path) -> None:
    train = rows_file("train", [{"prompt": "What is 1+1?", "answer": 2}, {"prompt": "b"}])
    test = rows_file("test", [{"prompt": " What is\n1+1? ", "answer": 3}])
    with pytest.raises(
        DataError,
        match=r"1 of 2 training prompts .*'What is 1\+1\?' \(data.evaluation.held\)\n.*drop",
    ):
        run([train], {"held": test})
    outputs = run([train], {"held": test}, on_overlap="drop")
    assert contents(outputs.tables["train"]) == ["b"]
    assert outputs.tables["evaluation"].num_rows == 1
    assert (outputs.metrics["overlap"], outputs.metrics["prompts/train/file"]) == (1, 1)


def test_the_same_words_from_another_role_are_no_overlap(project: Path) -> None:
    """A system message changes the prompt; so does who says what."""
    user = {"role": "user", "content": "a"}
    train = rows_file("train", [{"messages": [user]}])
    test = rows_file("test", [{"messages": [{"role": "system", "content": "Be brief."}, user]}])
    assert run([train], {"held": test}).metrics["overlap"] == 0


def test_nothing_left_to_train_on(project: Path) -> None:
    rows = rows_file("rows", [{"prompt": "a"}])
    with pytest.raises(DataError, match="none is left"):
        run([rows], {"held": rows}, on_overlap="drop")
    split = {**rows, "evaluation_share": 0.5}
    empty = next(
        role
        for role in ("train", "evaluation")
        if not list(Data(train=[split]).train[0].records(role, 0))
    )
    with pytest.raises(DataError, match=rf"data\.{empty}.*\(file\): has no prompts for {empty}"):
        run([split], {"held": {**rows, "evaluation_share": 0.5}})


def test_a_source_of_ones_own_is_checked(project: Path) -> None:
    Path("mine.py").write_text(
        "from rollbook.components.sources.base import Source\n"
        "class Mine(Source):\n"
        "    content: str = 'x'\n"
        "    def records(self, role, split_seed):\n"
        "        yield {'messages': [{'role': 'user', 'content': self.content}], 'reference_answer': 4}\n"
        "        yield {'messages': 'y'}\n"
    )
    with pytest.raises(
        DataError, match=r"data.train.0 \(Mine\): prompt 1: a prompt must be text or a list"
    ):
        run([{"path": "mine.py:Mine"}])


def test_same_data_same_bytes(project: Path) -> None:
    files = []
    for _ in range(2):
        run(["arithmetic"], {"heldout": "arithmetic"})
        files.append(
            [
                Path(f"artifacts/data/{name}.parquet").read_bytes()
                for name in ("train", "evaluation")
            ]
        )
    assert files[0] == files[1]


def test_errors_of_a_source_name_its_place(project: Path) -> None:
    Path("bad.jsonl").write_text('{"prompt": "a"}\n{')
    with pytest.raises(
        DataError, match=r"data.evaluation.held \(file\): bad.jsonl:2: not valid JSON"
    ):
        run(["arithmetic"], {"held": {"name": "file", "files": "bad.jsonl"}})
