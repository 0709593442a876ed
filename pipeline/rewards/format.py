r"""format: 1 if the completion is laid out as asked, else 0. It looks at the layout only, never at the answer.

    think_answer  `<think>…</think>` then `<answer>…</answer>`, each tag exactly once, only white space around them
    boxed         exactly one `\boxed{…}` anywhere, its braces balanced (`\{` and `\}` do not count)
    regex         the whole text matches `regex` (`.` also matches line ends)

A prompt that ends with `<think>` (many chat templates, or `assistant_prefix`) has opened the tag already: then the
completion must not open it again. Where the tags are special tokens of the tokenizer, the clean text has lost them:
set `raw: true`.
"""

from __future__ import annotations

import re
from typing import Literal

from pydantic import model_validator

from pipeline.rewards.base import Reward, RewardInput
from pipeline.rewards.patterns import Regex

TAGS = ("<think>", "</think>", "<answer>", "</answer>")
THINK_ANSWER = re.compile(r"\s*<think>.*</think>\s*<answer>.*</answer>(?P<rest>.*)", re.DOTALL)
SPECIAL_TOKENS = re.compile(r"(?:\s|<[^<>\s]++>)*+")
"""What may follow in raw text: end-of-text tokens such as `</s>` or `<|im_end|>`."""
BOX = r"\boxed{"
ESCAPED_OR_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


class Format(Reward):
    """Checks layout.

    Attributes:
        pattern: which layout.
        regex: the expression for `pattern: regex`. `re` has no time limit, see `patterns.py`.
        raw: look at the raw completion, special tokens kept, instead of the clean text.
    """

    pattern: Literal["think_answer", "boxed", "regex"] = "think_answer"
    regex: Regex | None = None
    raw: bool = False

    @model_validator(mode="after")
    def _regex_belongs_to_its_pattern(self) -> Format:
        if (self.regex is not None) != (self.pattern == "regex"):
            raise ValueError(
                "pattern: regex needs a `regex`"
                if self.regex is None
                else f"`regex` has no effect with pattern: {self.pattern}; set pattern: regex"
            )
        return self

    def __call__(self, row: RewardInput) -> float:
        text = row.completion if self.raw else row.text
        if self.regex is not None:
            return float(re.fullmatch(self.regex, text, re.DOTALL) is not None)
        if self.pattern == "boxed":
            return float(has_one_box(text))
        if row.prompt.rstrip().endswith(TAGS[0]):
            text = TAGS[0] + text
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
    depth = 1
    for found in ESCAPED_OR_BRACE.finditer(text, text.index(BOX) + len(BOX)):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if depth == 0:
            return True
    return False
