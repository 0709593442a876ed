"""What sources yield, gathered: checked, named, without repeats and overlap, and made into one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from rollbook.components.sources.base import Role, Source
from rollbook.components.sources.columns import Record, answer_text, checked_messages, messages_key
from rollbook.core.errors import DataError
from rollbook.core.ids import prompt_id_of
from rollbook.tables.artifacts import TABLES, schema_of

ASKED_FOR = ("messages", "reference_answer")
"""What a source gives of the tables' own columns; all else that a record holds are columns of the source's own."""
KEEP_FEWER = "keep only the columns that a reward reads, as `columns: [...]`"


@dataclass
class Part:
    """The prompts of one source.

    Attributes:
        place: in params.yaml, for errors.
        label: value of the column `source`.
        set_name: value of the column `set`: `train`, or the evaluation set.
        records: prompts kept so far.
        duplicates: prompts dropped because they stand in the same set already, with the same answer.
        conflicts: prompts dropped because they stand there with another answer, as shown to the user.
    """

    place: str
    label: str
    set_name: str
    records: list[Record]
    duplicates: int = 0
    conflicts: list[str] = field(default_factory=list)


def read_records(source: Source, role: Role, split_seed: int, place: str) -> list[Record]:
    """All prompts of a source, checked, with their ids. A column of the source's own that Rollbook's tables have
    too is called `data_<name>`.

    Raises:
        DataError: with the place, for anything wrong with the data, and for no data.
    """
    reserved = {name for kind in TABLES for name in schema_of(kind).columns}
    records = []
    try:
        for number, record in enumerate(source.records(role, split_seed)):
            messages = checked_messages(record.get("messages"), f"prompt {number}")
            answer = answer_text(record.get("reference_answer"), f"prompt {number}")
            own = {
                f"data_{name}" if name in reserved else name: value
                for name, value in record.items()
                if name not in ASKED_FOR
            }
            ids = {"prompt_id": prompt_id_of(messages, answer)}
            records.append({"messages": messages, "reference_answer": answer, **own, **ids})
    except DataError as error:
        raise DataError(f"{place}: {error.message}", error.hint) from None
    if not records:
        raise DataError(f"{place}: has no prompts for {role}")
    return records


def drop_repeats(parts: Sequence[Part]) -> None:
    """Keeps the first of prompts with the same messages, over all sources of a set."""
    answers: dict[tuple[tuple[str, str], ...], str | None] = {}
    for part in parts:
        kept = []
        for record in part.records:
            answer = record["reference_answer"]
            prompt = tuple((each["role"], each["content"]) for each in record["messages"])
            if prompt not in answers:
                answers[prompt] = answer
                kept.append(record)
            elif answers[prompt] == answer:
                part.duplicates += 1
            else:
                part.conflicts.append(_shown(record))
        part.records = kept


def drop_overlap(
    train: Sequence[Part], held_out: Sequence[Part], on_overlap: Literal["error", "drop"]
) -> int:
    """Takes evaluation prompts out of the training prompts. Returns how many there were.

    Raises:
        DataError: if there are any and `on_overlap` is `error`, or if nothing is left to train on.
    """
    sets = {
        messages_key(record["messages"]): part.set_name
        for part in reversed(held_out)
        for record in part.records
    }
    found: list[str] = []
    for part in train:
        kept = []
        for record in part.records:
            name = sets.get(messages_key(record["messages"]))
            if name is None:
                kept.append(record)
            else:
                found.append(f"{_shown(record)} (data.evaluation.{name})")
        part.records = kept
    left = sum(len(part.records) for part in train)
    if found and on_overlap == "error":
        raise DataError(
            f"data: {len(found)} of {len(found) + left} training prompts are evaluation prompts too (messages compared "
            f"without white space, answers not), such as {found[0]}",
            "give the sides files of their own or both the same `evaluation_share`, or set data.on_overlap: drop",
        )
    if not left:
        raise DataError("data.train: every training prompt is an evaluation prompt, none is left")
    return len(found)


def table_of(parts: Sequence[Part]) -> pa.Table:
    """One table of all parts; a column that only some sources have is null elsewhere.

    Raises:
        DataError: if a column's values differ in type, within a source or between two.
    """
    schema = schema_of("data")
    table = schema.empty()
    for part in parts:
        count = len(part.records)
        names = dict.fromkeys(name for record in part.records for name in record)
        columns = {name: _column(part, name) for name in names}
        columns |= {"source": [part.label] * count, "set": [part.set_name] * count}
        try:
            table = pa.concat_tables([table, schema.build(columns)], promote_options="permissive")
        except pa.ArrowException as error:
            raise DataError(
                f"{part.place}: a column has another type than in an earlier source: {error}",
                KEEP_FEWER,
            ) from None
    return table


def _column(part: Part, name: str) -> Any:
    known = schema_of("data").columns.get(name)
    try:
        return pa.array(
            [record.get(name) for record in part.records], type=known.dtype if known else None
        )
    except (pa.ArrowException, OverflowError, UnicodeEncodeError) as error:
        raise DataError(
            f"{part.place}: column {name!r} cannot be kept, its values differ in type: {error}",
            KEEP_FEWER,
        ) from None


def _shown(record: Record) -> str:
    text = record["messages"][-1]["content"]
    return repr(text if len(text) <= 80 else f"{text[:77]}...")
