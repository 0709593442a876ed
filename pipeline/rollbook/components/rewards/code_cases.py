"""The tests that come with a prompt, in the shapes that data sets carry them in.

    test code                         HumanEval (`test` with `check(candidate)`, and `entry_point`); one test
    list of test code                 MBPP (`test_list`); one test each
    list of {input, output}           LiveCodeBench, CodeContests; standard input and output, or with an entry point
                                      (`testtype: functional`) one JSON value a line for each argument, and one result
    {inputs, outputs}                 APPS, TACO; the same as two lists, with `fn_name` as the entry point

Texts that are JSON are read as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollbook.core.errors import RewardError


@dataclass(frozen=True)
class Cases:
    """Tests of one prompt: either `pairs` or `tests`.

    Attributes:
        pairs: standard input and expected standard output.
        tests: test code, or `{"arguments": [...], "expected": value}`.
        entry_point: the function that is asked for; empty if tests name it.
        setup: code that runs before each test, on the side of the tests.
    """

    pairs: Sequence[tuple[str, str]] = ()
    tests: Sequence[str | Mapping[str, Any]] = ()
    entry_point: str = ""
    setup: str = ""

    @property
    def total(self) -> int:
        """How many tests there are."""
        return len(self.pairs) + len(self.tests)


def cases_of(tests: Any, entry_point: Any = None, setup: Any = None) -> Cases:
    """Reads what a data set's columns hold.

    Raises:
        RewardError: if that is none of the shapes above.
    """
    if isinstance(tests, str) and tests.lstrip()[:1] in ("[", "{"):
        tests = _json(tests)
    entry = str(entry_point or "")
    if isinstance(tests, Mapping) and {"inputs", "outputs"} <= tests.keys():
        entry = str(tests.get("fn_name") or entry)
        inputs, outputs = tests["inputs"], tests["outputs"]
        for each in (inputs, outputs):
            if not isinstance(each, (list, tuple)):
                raise _unknown(each)
        if len(inputs) != len(outputs):
            raise RewardError(f"tests have {len(inputs)} inputs and {len(outputs)} outputs")
        tests = [{"input": i, "output": o} for i, o in zip(inputs, outputs, strict=True)]
    if isinstance(tests, str):
        tests = [tests]
    if not isinstance(tests, Sequence) or isinstance(tests, bytes):
        raise _unknown(tests)
    if not tests:
        raise RewardError("the list of tests is empty", "leave out prompts without tests")
    setup_code = _setup(setup)
    if all(isinstance(test, str) and test.strip() for test in tests):
        return Cases(tests=list(tests), entry_point=entry, setup=setup_code)
    if not all(isinstance(test, Mapping) and {"input", "output"} <= test.keys() for test in tests):
        raise _unknown(
            next(test for test in tests if not isinstance(test, str) or not test.strip())
        )
    kinds = {str(test.get("testtype") or ("functional" if entry else "stdin")) for test in tests}
    if kinds == {"functional"}:
        if not entry:
            raise RewardError(
                "tests call a function, and there is no entry point", "set `entry_point_column`"
            )
        return Cases(tests=[_call(test) for test in tests], entry_point=entry, setup=setup_code)
    if kinds != {"stdin"}:
        raise RewardError(
            f"tests are of kinds {', '.join(sorted(kinds))}; allowed: stdin or functional, not both"
        )
    return Cases(pairs=[(_text(test["input"]), _text(test["output"])) for test in tests])


def same_output(printed: bytes, expected: str) -> bool:
    """Whether a program printed what is expected; space at the end of lines and of the text does not count."""
    return _lines(printed.decode(errors="replace")) == _lines(expected)


def _setup(setup: Any) -> str:
    """Code that runs first; MBPP has it as a list of lines."""
    if setup is None or isinstance(setup, str):
        return setup or ""
    if isinstance(setup, (list, tuple)) and all(isinstance(line, str) for line in setup):
        return "\n".join(setup)
    raise RewardError(
        f"setup is {str(setup)[:60]!r}, a {type(setup).__name__}; allowed are code and a list of its lines"
    )


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _call(test: Mapping[str, Any]) -> dict[str, Any]:
    given, expected = test["input"], test["output"]
    if not isinstance(given, (str, list, tuple)):
        raise RewardError(
            f"a test calls the function with {str(given)[:60]!r}, a {type(given).__name__}; allowed are a list of "
            "arguments and a text with one JSON value a line"
        )
    return {
        "arguments": [_json(line) for line in given.splitlines() if line.strip()]
        if isinstance(given, str)
        else list(given),
        "expected": _json(expected) if isinstance(expected, str) else expected,
    }


def _text(value: Any) -> str:
    """Text of one input or output; APPS has some as lists of lines."""
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RewardError(f"tests hold {text[:60]!r}, which is not JSON: {error}") from None


def _unknown(found: Any) -> RewardError:
    return RewardError(
        f"tests are {str(found)[:60]!r}, a {type(found).__name__}; allowed are test code, a list of it, "
        "or a list of {input, output}"
    )
