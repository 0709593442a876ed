import time
from typing import Any

import pytest
from pydantic import ValidationError
from referencing.exceptions import Unresolvable

from tests.unit.components.rewards.rows import reward, row


def score(text: str, prompt: str = "<user>3+4=<assistant>", **options: Any) -> Any:
    raw = options.pop("completion", f"{text}<eos>")
    return reward("format", **options)(row(text, prompt=prompt, completion=raw))


@pytest.mark.parametrize(
    "text",
    [
        "<think>a</think><answer>b</answer>",
        "\n<think>\na\n</think>\n<answer>\nb\n</answer>\n",
        "<think></think><answer></answer>",
        "<think>1 < 2 <b></think> <answer>x</answer>",
    ],
)
def test_think_then_answer(text: str) -> None:
    assert score(text) == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "<think>a</think>",
        "<answer>b</answer><think>a</think>",
        "<think>a</think><answer>b",
        "a</think><answer>b</answer>",
        "<think>a</think> so <answer>b</answer>",
        "hm <think>a</think><answer>b</answer>",
        "<think>a</think><answer>b</answer> done",
        "<think>a<think>a</think></think><answer>b</answer>",
        "<think>a</think><answer>b</answer><answer>c</answer>",
        "<think><answer>b</answer></think>",
        "<THINK>a</THINK><ANSWER>b</ANSWER>",
        "<think>a</think><answer>b</answer><eos>",  # the clean text has no special tokens
    ],
)
def test_anything_else_is_not(text: str) -> None:
    assert score(text) == 0.0


def test_a_prompt_may_have_opened_the_thought() -> None:
    opened = "<user>3+4=<assistant><think>\n"
    assert score("a</think><answer>b</answer>", opened) == 1.0
    assert score("<think>a</think><answer>b</answer>", opened) == 0.0  # opened twice


def test_raw_looks_at_the_completion_with_its_special_tokens() -> None:
    raw = "<think>a</think><answer>b</answer>"
    for end in ("<eos>", "<|im_end|>\n", "</s>", ""):
        assert score("ab", completion=raw + end, raw=True) == 1.0
    assert score("ab", completion=f"{raw} and more<eos>", raw=True) == 0.0
    assert score("ab", completion=raw) == 0.0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"so \boxed{42}.", 1.0),
        (r"\boxed{\frac{1}{2}}", 1.0),
        (r"\boxed{\{1, 2\}}", 1.0),
        (r"\boxed{a \\}", 1.0),  # a line break, not an escaped brace
        (r"\boxed{}", 1.0),
        (r"\boxed{42", 0.0),
        (r"\boxed{\frac{1}{2}", 0.0),
        (r"\boxed{a\}", 0.0),
        (r"\boxed{1} or \boxed{2}", 0.0),
        (r"\boxed{\boxed{1}}", 0.0),
        (r"\boxed 42", 0.0),
        ("42", 0.0),
    ],
)
def test_one_balanced_box(text: str, value: float) -> None:
    assert score(text, pattern="boxed") == value


def test_regex_must_match_the_whole_text() -> None:
    options = {"pattern": "regex", "regex": r"Answer: .+"}
    assert score("Answer: a\nb", **options) == 1.0
    assert score("The Answer: a", **options) == 0.0
    assert score("x", completion="Answer: a<eos>", raw=True, **options) == 1.0


NUMBER = {"type": "object", "properties": {"answer": {"type": "number"}}, "required": ["answer"]}


@pytest.mark.parametrize(
    ("text", "any_value", "number"),
    [
        ('{"answer": 7}', 1.0, 1.0),
        (' \n{"answer": 7, "why": []}\n', 1.0, 1.0),
        ('```json\n{"answer": 7}\n```', 1.0, 1.0),
        ('<think>{"a": 1}</think>\n{"answer": 7}', 1.0, 1.0),
        ('{"answer": "7"}', 1.0, 0.0),
        ("7", 1.0, 0.0),
        ('{"answer": NaN}', 0.0, 0.0),
        ('{"answer": 7} and more', 0.0, 0.0),
        ("{'answer': 7}", 0.0, 0.0),
        ('<think>{"answer": 7}', 0.0, 0.0),
        ("", 0.0, 0.0),
        ("[" * 100_000, 0.0, 0.0),
        ("9" * 100_000, 0.0, 0.0),
    ],
)
def test_json(text: str, any_value: float, number: float) -> None:
    assert score(text, pattern="json") == any_value
    assert score(text, pattern="json", json_schema=NUMBER) == number


def test_json_behind_a_thought_that_the_prompt_opened() -> None:
    opened = "<user>3+4=<assistant><think>\n"
    assert score('so</think>{"answer": 7}', opened, pattern="json", json_schema=NUMBER) == 1.0
    assert score('{"answer": 7}', opened, pattern="json", json_schema=NUMBER) == 0.0


def test_a_schema_elsewhere_is_an_error_and_no_request() -> None:
    elsewhere = {"$ref": "http://127.0.0.1:9/schema.json"}
    with pytest.raises(Unresolvable):
        score("7", pattern="json", json_schema=elsewhere)
    inside = {"$defs": {"n": {"type": "number"}}, "$ref": "#/$defs/n"}
    assert score("7", pattern="json", json_schema=inside) == 1.0
    assert score('"7"', pattern="json", json_schema=inside) == 0.0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"json_schema": NUMBER}, "no effect with pattern: think_answer"),
        (
            {"pattern": "json", "json_schema": {"type": "numbr"}},
            r"no JSON Schema: \$.type: 'numbr'",
        ),
        ({"pattern": "regex"}, "needs a `regex`"),
        ({"regex": "a"}, "no effect with pattern: think_answer"),
        ({"pattern": "regex", "regex": "["}, "not a regular expression"),
        ({"pattern": "xml"}, "'think_answer', 'boxed', 'regex' or 'json'"),
    ],
)
def test_what_does_not_fit_together_is_refused_when_built(
    options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValidationError, match=reason):
        reward("format", **options)


@pytest.mark.parametrize(
    "text",
    [
        "<think>" * 20_000,
        "<think>" + "</think>" * 20_000,
        "<think></think>" + " " * 100_000 + "<answer>",
        r"\boxed{" + "{" * 100_000,
        r"\boxed{" * 20_000,
        "<answer></answer>" + "<a" * 50_000,
    ],
)
@pytest.mark.parametrize("raw", [True, False])
def test_hostile_text_is_quick(text: str, raw: bool) -> None:
    started = time.perf_counter()
    for pattern in ("think_answer", "boxed"):
        assert score(text, completion=text, pattern=pattern, raw=raw) == 0.0
    assert time.perf_counter() - started < 2
