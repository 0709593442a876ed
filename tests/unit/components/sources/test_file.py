"""The user's own files: what they may hold, and what is said about those that hold something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollbook.core.errors import DataError
from rollbook.core.registry import build

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2="}]


def source(**options: Any) -> Any:
    return build("sources", {"name": "file", **options})


def records(role: Any = "train", split_seed: int = 0, **options: Any) -> list[dict[str, Any]]:
    return list(source(**options).records(role, split_seed))


def write_jsonl(path: Path, rows: list[Any]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_jsonl_with_messages_or_text(project: Path) -> None:
    rows = [
        {"prompt": "1+1=", "answer": 2, "level": {"name": "easy"}, "tags": ["a"]},
        {"prompt": MESSAGES, "answer": "4", "level": None, "tags": []},
    ]
    write_jsonl(project / "train.jsonl", rows)
    assert records(files="train.jsonl") == [
        {
            "messages": user("1+1="),
            "reference_answer": "2",
            "level": {"name": "easy"},
            "tags": ["a"],
        },
        {"messages": MESSAGES, "reference_answer": "4", "level": None, "tags": []},
    ]


@pytest.mark.parametrize("prompt", ["messages", "prompt", "question", "problem", "instruction"])
@pytest.mark.parametrize(
    "answer", ["reference_answer", "answer", "final_answer", "ground_truth", "solution"]
)
def test_usual_column_names_are_found(project: Path, prompt: str, answer: str) -> None:
    write_jsonl(project / "a.jsonl", [{prompt: user("1+1="), answer: "2"}])
    assert records(files="a.jsonl") == [{"messages": user("1+1="), "reference_answer": "2"}]


def test_the_answer_is_preferred_to_the_solution(project: Path) -> None:
    write_jsonl(
        project / "a.jsonl", [{"problem": "1+1=", "solution": "One and one…", "answer": "2"}]
    )
    (record,) = records(files="a.jsonl")
    assert record["reference_answer"] == "2"
    assert record["solution"] == "One and one…"


def test_explicit_columns_win_and_the_rest_can_be_left_out(project: Path) -> None:
    write_jsonl(
        project / "a.jsonl", [{"prompt": "no", "q": "1+1=", "answer": "no", "a": 2, "level": 1}]
    )
    mapping = {"files": "a.jsonl", "prompt": "q", "reference_answer": "a"}
    (record,) = records(**mapping, columns=["level"])
    assert record == {"messages": user("1+1="), "reference_answer": "2", "level": 1}
    assert records(**mapping)[0]["prompt"] == "no"


def test_csv_keeps_cells_as_text(project: Path) -> None:
    (project / "a.csv").write_bytes(
        b'\xef\xbb\xbfquestion,answer,level\r\n"a, ""b""\r\nc",007,1\r\n\r\nd,1.50,\r\ne,,2\r\n'
    )
    assert records(files="a.csv") == [
        {"messages": user('a, "b"\r\nc'), "reference_answer": "007", "level": "1"},
        {"messages": user("d"), "reference_answer": "1.50", "level": None},
        {"messages": user("e"), "reference_answer": None, "level": "2"},
    ]


def test_csv_may_hold_messages_as_json(project: Path) -> None:
    cell = json.dumps(MESSAGES).replace('"', '""')
    (project / "a.csv").write_text(f'messages,answer\n"{cell}",4\n')
    assert records(files="a.csv")[0]["messages"] == MESSAGES


def test_tsv(project: Path) -> None:
    (project / "a.tsv").write_text("question\tanswer\na,b\t1\n")
    assert records(files="a.tsv") == [{"messages": user("a,b"), "reference_answer": "1"}]


def test_parquet(project: Path) -> None:
    import datetime
    import decimal

    columns = {
        "question": ["a", "b"],
        "answer": pa.array([decimal.Decimal("1.50"), None]),
        "when": [datetime.date(2026, 1, 2), None],
        "scores": [[1.5, 2.0], None],
        "image": [b"x", b"y"],
    }
    pq.write_table(pa.table(columns), project / "a.parquet")
    assert records(files="a.parquet", columns=["when", "scores"]) == [
        {
            "messages": user("a"),
            "reference_answer": "1.50",
            "when": "2026-01-02",
            "scores": [1.5, 2.0],
        },
        {"messages": user("b"), "reference_answer": None, "when": None, "scores": None},
    ]
    with pytest.raises(
        DataError, match=r"a.parquet, row 1, column 'image': holds bytes.*\n.*columns:"
    ):
        records(files="a.parquet")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7, "7"),
        (7.0, "7"),
        (0.5, "0.5"),
        (-3, "-3"),
        (True, "true"),
        ("007", "007"),
        (None, None),
        (1e300, "1e+300"),
    ],
)
def test_numbers_become_text(project: Path, value: Any, text: str | None) -> None:
    write_jsonl(project / "a.jsonl", [{"prompt": "x", "answer": value}])
    assert records(files="a.jsonl")[0]["reference_answer"] == text


def test_several_files_and_patterns_in_order(project: Path) -> None:
    for name in ("b1", "b2", "a"):
        write_jsonl(project / f"{name}.jsonl", [{"prompt": name}])
    (project / ".b0.jsonl").write_text("hidden")
    files = ["b*.jsonl", "a.jsonl"]
    assert [row["messages"][0]["content"] for row in records(files=files)] == ["b1", "b2", "a"]
    assert source(files=files).data_files() == ["b1.jsonl", "b2.jsonl", "a.jsonl"]
    assert [row["messages"] for row in records(files=str(project / "b*.jsonl"))] == [
        user("b1"),
        user("b2"),
    ]


def test_missing_files_still_count_as_data_files(project: Path) -> None:
    assert source(files="not_yet.jsonl").data_files() == ["not_yet.jsonl"]


def test_blank_lines_and_bom(project: Path) -> None:
    (project / "a.jsonl").write_bytes(
        b'\xef\xbb\xbf{"prompt": "a"}\n\n  \r\n{"prompt": "b\xe2\x80\xa8c"}'
    )
    assert [row["messages"][0]["content"] for row in records(files="a.jsonl")] == ["a", "b\u2028c"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"prompt": "x"', r"a.jsonl:4: not valid JSON"),
        (b'["x"]', r"a.jsonl:4: must be a JSON object, is list"),
        (b'{"prompt": "\xff"}', r"a.jsonl:4: not UTF-8"),
        (b'{"prompt": "\\ud83d"}', r"a.jsonl:4: holds half a surrogate pair"),
        (b'{"promt": "x"}', r"a.jsonl:4: has no column 'prompt'; did you mean 'promt'\?"),
        (
            b'{"prompt": 5}',
            r"a.jsonl:4, column 'prompt': a prompt must be text or a list .*, is int 5",
        ),
        (b'{"prompt": " "}', r"a.jsonl:4, column 'prompt': the prompt is empty"),
        (b'{"prompt": []}', r"a.jsonl:4, column 'prompt': the prompt has no messages"),
        (b'{"prompt": ["x"]}', r"a.jsonl:4, column 'prompt': a prompt must be text or a list"),
        (
            b'{"prompt": [{"role": "user", "contents": "x"}]}',
            r"message 0: `content` must be text, is missing; did you mean 'contents'\?",
        ),
        (
            b'{"prompt": [{"role": "user", "content": [1]}]}',
            r"message 0: `content` must be text, is list \[1\]",
        ),
        (
            b'{"prompt": [{"role": "user", "content": "x", "tool_calls": [1]}]}',
            r"message 0: has 'tool_calls'; a message is kept as role and content",
        ),
        (
            b'{"prompt": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}',
            r"the last message is the assistant's, so this is an answered prompt",
        ),
        (
            b'{"prompt": "x", "answer": [1, 2]}',
            r"a.jsonl:4: a reference answer must be text or a number, is list",
        ),
    ],
)
def test_malformed_lines_are_named(project: Path, line: bytes, message: str) -> None:
    good = b'{"prompt": "x", "answer": "1"}\n'
    (project / "a.jsonl").write_bytes(good + b"\n" + good + line + b"\n" + good)
    with pytest.raises(DataError, match=message):
        records(files="a.jsonl")


def test_half_a_surrogate_pair_is_refused_but_a_whole_one_is_text(project: Path) -> None:
    (project / "a.jsonl").write_text('{"prompt": "\\ud83d\\ude00"}\n')
    assert records(files="a.jsonl")[0]["messages"] == user("😀")


def test_text_in_a_column_of_messages(project: Path) -> None:
    write_jsonl(project / "a.jsonl", [{"messages": "1+1="}])
    with pytest.raises(
        DataError, match=r"must be a list of .* messages, is text\n.*prompt: messages"
    ):
        records(files="a.jsonl")
    assert records(files="a.jsonl", prompt="messages")[0]["messages"] == user("1+1=")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("question,answer\na\n", r"a.csv:2: 1 cells, the header has 2"),
        ("question,answer\na,b,c\n", r"a.csv:2: 3 cells, the header has 2"),
        ("question,question\na,b\n", r"a.csv:1: two columns are called 'question'"),
        ('question,answer\n"a,b\n', r"a.csv:\d: not valid CSV: unexpected end of data"),
        (
            "questoin,answer\na,b\n",
            r"a.csv:2: has no column of messages, prompt, .*\n.*prompt: <column>",
        ),
    ],
)
def test_malformed_csv(project: Path, text: str, message: str) -> None:
    (project / "a.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        records(files="a.csv")


def test_missing_columns_name_the_nearest(project: Path) -> None:
    write_jsonl(project / "a.jsonl", [{"question": "x", "anwser": "1", "level": 1}])
    for options, message in (
        ({"prompt": "questions"}, r"has no column 'questions'; did you mean 'question'\?"),
        (
            {"reference_answer": "answer"},
            r"a.jsonl:1: has no column 'answer'; did you mean 'anwser'\?",
        ),
        ({"columns": ["levels"]}, r"a.jsonl:1: has no column 'levels'; did you mean 'level'\?"),
    ):
        with pytest.raises(DataError, match=message):
            records(files="a.jsonl", **options)


def test_files_that_are_not_there(project: Path) -> None:
    (project / "data").mkdir()
    write_jsonl(project / "data" / "train.jsonl", [{"prompt": "x"}])
    (project / "data" / "notes.txt").write_text("x")
    for files, message in (
        ("data/trian.jsonl", r"data/trian.jsonl: no such file; did you mean 'data/train.jsonl'\?"),
        ("dat/train.jsonl", r"the folder dat does not exist either"),
        ("data/*.csv", r"data/\*.csv: no file matches this pattern"),
        ("data", r"data: is a folder\n.*data/\*.jsonl"),
        ("data/notes.txt", r"unknown kind of file '.txt'; .*allowed: .csv, .jsonl, .parquet, .tsv"),
    ):
        with pytest.raises(DataError, match=message):
            records(files=files)


def test_empty_and_damaged_files(project: Path) -> None:
    (project / "empty.jsonl").write_text("\n")
    (project / "head.csv").write_text("question,answer\n")
    (project / "bad.parquet").write_bytes(b"PAR1 no")
    for name in ("empty.jsonl", "head.csv"):
        with pytest.raises(DataError, match=f"{name}: holds no prompts"):
            records(files=name)
    with pytest.raises(DataError, match=r"bad.parquet: not a valid Parquet file"):
        records(files="bad.parquet")


def test_one_file_split_in_two(project: Path) -> None:
    write_jsonl(
        project / "a.jsonl", [{"prompt": f"{n} plus {n}?", "answer": 2 * n} for n in range(2000)]
    )
    sides = {
        role: records(role, files="a.jsonl", evaluation_share=0.2)
        for role in ("train", "evaluation")
    }
    texts = {role: {row["messages"][0]["content"] for row in rows} for role, rows in sides.items()}
    assert not texts["train"] & texts["evaluation"]
    assert len(texts["train"]) + len(texts["evaluation"]) == 2000
    # binomial: 400 expected, standard deviation sqrt(2000 · 0.2 · 0.8) = 17.9; five of them on each side
    assert 310 < len(texts["evaluation"]) < 490
    other = records("evaluation", 1, files="a.jsonl", evaluation_share=0.2)
    assert {row["messages"][0]["content"] for row in other} != texts["evaluation"]


def test_split_keeps_what_differs_in_white_space_together(project: Path) -> None:
    rows = [
        {"prompt": text} for n in range(200) for text in (f"{n} plus {n}?", f" {n}  plus\n{n}?")
    ]
    write_jsonl(project / "a.jsonl", rows)
    side = [row["messages"][0]["content"] for row in records(files="a.jsonl", evaluation_share=0.5)]
    assert len({" ".join(text.split()) for text in side}) * 2 == len(side)


def test_a_number_of_prompts(project: Path) -> None:
    write_jsonl(project / "a.jsonl", [{"prompt": str(n)} for n in range(100)])
    few = [row["messages"][0]["content"] for row in records(files="a.jsonl", prompts=10)]
    more = [row["messages"][0]["content"] for row in records(files="a.jsonl", prompts=20)]
    assert len(few) == 10 and few != [str(n) for n in range(10)]
    assert set(few) < set(more) and few == sorted(few, key=int)
    assert few != [
        row["messages"][0]["content"] for row in records("train", 1, files="a.jsonl", prompts=10)
    ]
    with pytest.raises(
        DataError, match=r"200 different prompts are wanted for train, there are 100"
    ):
        records(files="a.jsonl", prompts=200)


def test_prompt_and_messages_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="give one"):
        source(files="a.jsonl", prompt="a", messages="b")
