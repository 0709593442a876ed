import json
from typing import Any

import pytest

from rollbook.components.rewards.code_cases import Cases, cases_of, same_output
from rollbook.core.errors import RewardError

CHECK = "def check(candidate):\n    assert candidate(1) == 2\n"
PAIRS = [{"input": "1\n", "output": "2\n"}, {"input": "3", "output": "4"}]
CALL = {"input": "[1, 2]\n3", "output": '{"a": 1}', "testtype": "functional"}


@pytest.mark.parametrize(
    ("tests", "entry_point", "cases"),
    [
        (CHECK, "f", Cases(tests=[CHECK], entry_point="f")),
        (["assert f(1)", "assert f(2)"], None, Cases(tests=["assert f(1)", "assert f(2)"])),
        (PAIRS, None, Cases(pairs=[("1\n", "2\n"), ("3", "4")])),
        (json.dumps(PAIRS), "", Cases(pairs=[("1\n", "2\n"), ("3", "4")])),
        ({"inputs": ["1"], "outputs": [["2", "3"]]}, None, Cases(pairs=[("1", "2\n3")])),
        (
            [CALL],
            "f",
            Cases(tests=[{"arguments": [[1, 2], 3], "expected": {"a": 1}}], entry_point="f"),
        ),
        (
            {"inputs": [[1, [2]]], "outputs": [3], "fn_name": "g"},
            None,
            Cases(tests=[{"arguments": [1, [2]], "expected": 3}], entry_point="g"),
        ),
        (
            [{**PAIRS[0], "testtype": "stdin"}],
            "not_used",
            Cases(pairs=[("1\n", "2\n")]),
        ),
    ],
)
def test_shapes_of_data_sets(tests: Any, entry_point: str | None, cases: Cases) -> None:
    assert cases_of(tests, entry_point) == cases


def test_setup_may_be_lines() -> None:
    assert cases_of(["assert f()"], None, ["import math", "x = 1"]).setup == "import math\nx = 1"


@pytest.mark.parametrize("setup", [5, {"a": 1}, [1]])
def test_other_setup_is_an_error(setup: Any) -> None:
    with pytest.raises(RewardError, match="allowed are code and a list of its lines"):
        cases_of(["assert f()"], None, setup)


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ([], "empty"),
        (7, "a int; allowed"),
        ([1], "a int; allowed"),
        ([""], "a str; allowed"),
        (["assert f()", {"input": "", "output": ""}], "allowed"),
        ([{"input": "1"}], "a dict; allowed"),
        ({"inputs": ["1"], "outputs": []}, "1 inputs and 0 outputs"),
        ({"inputs": None, "outputs": None}, "a NoneType; allowed"),
        ({"inputs": ["1"], "outputs": 2, "fn_name": "f"}, "a int; allowed"),
        ({"inputs": [5], "outputs": ["1"], "fn_name": "f"}, "'5', a int; allowed are a list"),
        ("[1,", "not JSON"),
        ([CALL], "no entry point"),
        ([CALL, {**CALL, "testtype": "stdin"}], "functional, stdin"),
    ],
)
def test_other_shapes_are_errors(tests: Any, message: str) -> None:
    with pytest.raises(RewardError, match=message):
        cases_of(tests)


@pytest.mark.parametrize(
    ("printed", "expected", "same"),
    [
        (b"1\n2\n", "1\n2", True),
        (b"1 \n2\n\n\n", "1\n2\n", True),
        (b"", "\n", True),
        (b"1\n2", "1 2", False),
        (b" 1", "1", False),
        (b"1\n\n2", "1\n2", False),
        (b"\xff", "", False),
        (b"1\n2\npassed", "1\n2", False),
    ],
)
def test_same_output(printed: bytes, expected: str, same: bool) -> None:
    assert same_output(printed, expected) is same
