"""From the rows of a user's data set to prompts: which column is what, and which rows are wanted.

Shared by the sources that read rows (`file`, `hub`).
"""

from __future__ import annotations

import decimal
import hashlib
import heapq
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field, PositiveInt, model_validator

from rollbook.components.sources.base import Role
from rollbook.components.sources.reading import Row, plain
from rollbook.core.component import Model
from rollbook.core.errors import DataError, nearest
from rollbook.core.ids import seed_of

PROMPT_COLUMNS = ("messages", "prompt", "question", "problem", "instruction")
"""Where a prompt is looked for, in this order, if params.yaml does not say."""
ANSWER_COLUMNS = ("reference_answer", "answer", "final_answer", "ground_truth", "solution")
"""Where a reference answer is looked for, in this order, if params.yaml does not say."""
SEED_RANGE = 2**63

Record = dict[str, Any]


class Columns(Model):
    """Which columns of a data set are what, and which of its rows are wanted."""

    prompt: str | None = None
    """Column with the prompt: text (becomes one user message) or a list of messages.
    Default: the first of messages, prompt, question, problem, instruction that there is."""
    messages: str | None = None
    """Column with a list of `{role, content}`, or with the JSON text of one; instead of `prompt`."""
    reference_answer: str | None = None
    """Column with the gold answer; numbers become text.
    Default: the first of reference_answer, answer, final_answer, ground_truth, solution that there is."""
    columns: list[str] | None = None
    """Further columns to keep, for rewards that read them. Default: all."""
    evaluation_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Splits one data set: this share of its prompts is for evaluation, the rest for training. Give both sides
    the same share. Default: all rows, for whichever side names this source."""
    prompts: PositiveInt | None = None
    """How many different prompts to take, chosen by `data.split_seed`. Default: all."""

    @model_validator(mode="after")
    def _one_prompt_column(self) -> Columns:
        if self.prompt is not None and self.messages is not None:
            raise ValueError(
                "`prompt` and `messages` both name the column with the prompt; give one"
            )
        return self

    def mapped(self, rows: Iterable[Row]) -> Iterator[Record]:
        """Turns the rows of one file into records with `messages`, `reference_answer` and the kept columns.

        Raises:
            DataError: for a missing column, or a prompt or answer of an impossible type, with the place.
        """
        prompt = answer = None
        for place, row in rows:
            if prompt is None:
                prompt, answer = self._chosen_columns(row, place)
            if prompt not in row:
                raise DataError(f"{place}: has no column {prompt!r}; {nearest(prompt, row)}")
            yield {
                "messages": self._messages(row[prompt], prompt, place),
                "reference_answer": answer_text(row.get(answer), place) if answer else None,
                **self._further(row, (prompt, answer), place),
            }

    def selected(self, records: Iterable[Record], role: Role, split_seed: int) -> Iterator[Record]:
        """Keeps the records of one side of the split and, of these, as many prompts as are wanted.

        Raises:
            DataError: if there are fewer prompts than wanted.
        """
        if self.evaluation_share is not None:
            records = (
                record
                for record in records
                if on_side(record["messages"], role, self.evaluation_share, split_seed)
            )
        if self.prompts is None:
            yield from records
            return
        kept = list(records)
        marks = [seed_of("choice", split_seed, messages_key(record["messages"])) for record in kept]
        wanted = set(heapq.nsmallest(self.prompts, set(marks)))
        if len(wanted) < self.prompts:
            raise DataError(
                f"prompts: {self.prompts} different prompts are wanted for {role}, there are {len(wanted)}",
                f"set `prompts` to at most {len(wanted)}",
            )
        yield from (record for record, mark in zip(kept, marks, strict=True) if mark in wanted)

    def _chosen_columns(self, row: Mapping[str, Any], place: str) -> tuple[str, str | None]:
        named = self.messages or self.prompt
        prompt = named or next((name for name in PROMPT_COLUMNS if name in row), None)
        if prompt is None or prompt not in row:
            looked_for = repr(prompt) if prompt else f"of {', '.join(PROMPT_COLUMNS)}"
            raise DataError(
                f"{place}: has no column {looked_for}; {nearest(prompt or 'prompt', row)}",
                "name the column with the prompt, as `prompt: <column>`",
            )
        answer = self.reference_answer
        if answer is not None and answer not in row:
            raise DataError(f"{place}: has no column {answer!r}; {nearest(answer, row)}")
        return prompt, answer or next((name for name in ANSWER_COLUMNS if name in row), None)

    def _messages(self, value: Any, column: str, place: str) -> list[dict[str, str]]:
        place = f"{place}, column {column!r}"
        lists_only = column == (self.messages or "messages") and column != self.prompt
        if isinstance(value, str) and lists_only:
            try:
                value = json.loads(value)
            except ValueError:
                raise DataError(
                    f"{place}: must be a list of {{role, content}} messages, is text",
                    f"for plain text, set `prompt: {column}`",
                ) from None
        if isinstance(value, str):
            value = [{"role": "user", "content": value}]
        return checked_messages(value, place)

    def _further(
        self, row: Mapping[str, Any], used: Collection[str | None], place: str
    ) -> dict[str, Any]:
        names = row if self.columns is None else self.columns
        if missing := [name for name in names if name not in row]:
            raise DataError(f"{place}: has no column {missing[0]!r}; {nearest(missing[0], row)}")
        return {
            name: plain(row[name], f"{place}, column {name!r}")
            for name in names
            if name not in used
        }


def checked_messages(value: Any, place: str) -> list[dict[str, str]]:
    """The prompt as a list of messages with exactly role and content.

    Raises:
        DataError: if it is anything else, empty, or ends with an answer of the assistant.
    """
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise DataError(
            f"{place}: a prompt must be text or a list of {{role, content}} messages, is {_shown(value)}"
        )
    if not value:
        raise DataError(f"{place}: the prompt has no messages")
    messages = [_message(item, f"{place}, message {number}") for number, item in enumerate(value)]
    if messages[-1]["role"] == "assistant":
        raise DataError(
            f"{place}: the last message is the assistant's, so this is an answered prompt",
            "map a column that holds only the prompt, as `prompt: <column>`",
        )
    if not any(message["content"].strip() for message in messages):
        raise DataError(f"{place}: the prompt is empty")
    return messages


def _message(item: Mapping[str, Any], place: str) -> dict[str, str]:
    for key in ("role", "content"):
        if not isinstance(item.get(key), str):
            got = f"is {_shown(item[key])}" if key in item else f"is missing; {nearest(key, item)}"
            raise DataError(f"{place}: `{key}` must be text, {got}")
    if lost := [key for key in item if key not in ("role", "content") and item[key] is not None]:
        raise DataError(
            f"{place}: has {lost[0]!r}; a message is kept as role and content, nothing else",
            "remove it from the data, or write a source of your own that puts it into the content",
        )
    return {"role": item["role"], "content": item["content"]}


def answer_text(value: Any, place: str) -> str | None:
    """A reference answer as text: 7 and 7.0 become `7`; null and NaN stay without answer.

    Raises:
        DataError: for lists and objects.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        if value != value:
            return None
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    if isinstance(value, (int, decimal.Decimal)):
        return str(value)
    raise DataError(
        f"{place}: a reference answer must be text or a number, is {_shown(value)}",
        "map a column with one answer, as `reference_answer: <column>`; a reward can read lists from other columns",
    )


def messages_key(messages: Iterable[Mapping[str, str]]) -> str:
    """A name for the messages alone, the same for prompts that differ only in white space."""
    parts = (f"{each['role']}\0{' '.join(each['content'].split())}" for each in messages)
    text = "\0\0".join(parts).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def on_side(
    messages: Iterable[Mapping[str, str]], role: Role, evaluation_share: float, split_seed: int
) -> bool:
    """Whether a prompt is on this side of the split. Depends on nothing but the prompt and the seed."""
    mark = seed_of("split", split_seed, messages_key(messages))
    return (mark < evaluation_share * SEED_RANGE) == (role == "evaluation")


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
