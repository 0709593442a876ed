r"""format: 1 if the completion is laid out as asked, else 0. It looks at the layout only, never at the answer.

    think_answer  `<think>…</think>` then `<answer>…</answer>`, each tag exactly once, only white space around them
    boxed         exactly one `\boxed{…}` anywhere, its braces balanced (`\{` and `\}` do not count)
    regex         the whole text matches `regex` (`.` also matches line ends)
    json          what follows the thought, if there is one, is one JSON value that `json_schema` allows; a fence
                  around it (```json … ```) does not count

A prompt that ends with `<think>` (many chat templates, or `assistant_prefix`) has opened the tag already: then the
completion must not open it again. Where the tags are special tokens of the tokenizer, the clean text has lost them:
set `raw: true`.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal, NoReturn

from pydantic import field_validator, model_validator

from rollbook.components.rewards.answers import (
    ANSWER,
    BOX,
    END_OF_ANSWER,
    END_OF_THINK,
    THINK,
    behind_thought,
    end_of_box,
    opens_thought,
)
from rollbook.components.rewards.base import Reward, RewardInput
from rollbook.components.rewards.patterns import Regex

TAGS = (THINK, END_OF_THINK, ANSWER, END_OF_ANSWER)
THINK_ANSWER = re.compile(r"\s*<think>.*</think>\s*<answer>.*</answer>(?P<rest>.*)", re.DOTALL)
SPECIAL_TOKENS = re.compile(r"(?:\s|<[^<>\s]++>)*+")
"""What may follow in raw text: end-of-text tokens such as `</s>` or `<|im_end|>`."""
FENCE = re.compile(r"\s*```(?:json)?\n(?P<inside>.*)```\s*", re.DOTALL)


class Format(Reward):
    """Checks layout.

    Attributes:
        pattern: which layout.
        regex: the expression for `pattern: regex`. `re` has no time limit, see `patterns.py`.
        json_schema: JSON Schema (draft 2020-12 unless it names another) for `pattern: json`; default: any value. What
            it refers to must be in it: nothing is fetched.
        raw: look at the raw completion, special tokens kept, instead of the clean text.
    """

    pattern: Literal["think_answer", "boxed", "regex", "json"] = "think_answer"
    regex: Regex | None = None
    json_schema: dict[str, Any] | None = None
    raw: bool = False

    @field_validator("json_schema")
    @classmethod
    def _is_a_schema(cls, schema: dict[str, Any] | None) -> dict[str, Any] | None:
        if schema is not None:
            from jsonschema.exceptions import SchemaError
            from jsonschema.validators import validator_for

            try:
                validator_for(schema).check_schema(schema)
            except SchemaError as error:
                raise ValueError(f"no JSON Schema: {error.json_path}: {error.message}") from None
        return schema

    @model_validator(mode="after")
    def _regex_belongs_to_its_pattern(self) -> Format:
        if (self.regex is not None) != (self.pattern == "regex"):
            raise ValueError(
                "pattern: regex needs a `regex`"
                if self.regex is None
                else f"`regex` has no effect with pattern: {self.pattern}; set pattern: regex"
            )
        if self.json_schema is not None and self.pattern != "json":
            raise ValueError(
                f"`json_schema` has no effect with pattern: {self.pattern}; set pattern: json"
            )
        return self

    def __call__(self, row: RewardInput) -> float:
        text = row.completion if self.raw else row.text
        if self.regex is not None:
            return float(re.fullmatch(self.regex, text, re.DOTALL) is not None)
        if self.pattern == "boxed":
            return float(has_one_box(text))
        if self.pattern == "json":
            return float(is_json(behind_thought(text, row.prompt), self.json_schema))
        if opens_thought(row.prompt):
            text = THINK + text
        return float(is_think_answer(text, special_tokens=self.raw))


def is_think_answer(text: str, special_tokens: bool = False) -> bool:
    """Whether `text` is one thought and then one answer; `special_tokens` may follow if allowed."""
    # Counting first leaves one way to match, so that the expression cannot backtrack.
    if any(text.count(tag) != 1 for tag in TAGS):
        return False
    found = THINK_ANSWER.fullmatch(text)
    if found is None:
        return False
    rest = found["rest"]
    return not rest.strip() or (special_tokens and SPECIAL_TOKENS.fullmatch(rest) is not None)


def has_one_box(text: str) -> bool:
    r"""Whether `text` holds exactly one `\boxed{…}` whose braces are balanced."""
    if text.count(BOX) != 1:
        return False
    return end_of_box(text, text.index(BOX) + len(BOX)) is not None


def is_json(text: str, schema: dict[str, Any] | None = None) -> bool:
    """Whether `text` is one JSON value, fenced or not, that the schema allows. NaN and Infinity are not JSON.

    Raises:
        referencing.exceptions.Unresolvable: if the schema refers to something outside of it.
    """
    fenced = FENCE.fullmatch(text)
    try:
        value = json.loads(fenced["inside"] if fenced else text, parse_constant=_refuse)
        return schema is None or _allows(schema, value)
    except (ValueError, RecursionError):  # nested a thousand times is no answer either
        return False


def _allows(schema: dict[str, Any], value: Any) -> bool:
    from jsonschema.validators import validator_for
    from referencing import Registry

    # With a registry of its own, references to other hosts are errors and not requests.
    validator: Any = validator_for(schema)(schema, registry=Registry())
    return bool(validator.is_valid(value))


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)
