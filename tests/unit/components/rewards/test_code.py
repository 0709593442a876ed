"""Programs, their tests, and every way known to us to pass tests without solving the task."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from rollbook.components.rewards import code as code_module
from rollbook.components.rewards.base import RewardResult
from tests.processes import nothing_left
from tests.unit.components.rewards.rows import reward, row

GOOD = "def add(a, b):\n    return a + b"
TESTS = ["assert add(1, 2) == 3", "assert add(40, 2) == 42"]
PAIRS = [{"input": "1 2\n", "output": "3\n"}, {"input": "40 2\n", "output": "42\n"}]
SCRIPT = "a, b = map(int, input().split())\nprint(a + b)"
QUICK = {"seconds": 1, "row_seconds": 6.0, "memory_mb": 256}


def scored(code: str, tests: Any = None, columns: Any = None, **options: Any) -> RewardResult:
    """What the reward says about a completion with `code` as its block; it must not raise."""
    built = reward("code", **{**QUICK, **options})
    result = built(
        row(
            f"Here it is:\n```python\n{code}\n```\nDone.",
            columns={"tests": tests, **(columns or {})},
        )
    )
    assert isinstance(result, RewardResult)
    return result


def outcome(result: RewardResult) -> tuple[float | None, int, int, str]:
    return (
        result.value,
        result.log["code_tests_passed"],
        result.log["code_tests_total"],
        result.log["code_outcome"],
    )


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No row may leave an open file, socket or child."""
    with nothing_left():
        yield


def test_tests_of_a_function() -> None:
    assert outcome(scored(GOOD, TESTS)) == (1.0, 2, 2, "passed")
    assert outcome(scored("def add(a, b): return 3", TESTS)) == (0.0, 1, 2, "failed")
    assert scored("def add(a, b): return 3", TESTS, credit="share").value == 0.5


def test_tests_of_output() -> None:
    assert outcome(scored(SCRIPT, PAIRS)) == (1.0, 2, 2, "passed")
    assert outcome(scored("print(3)", PAIRS, credit="share")) == (0.5, 1, 2, "failed")
    ending = "import sys\n" + SCRIPT + "\nif __name__ == '__main__':\n    sys.exit(0)"
    assert scored(ending, PAIRS).value == 1.0
    assert outcome(scored(SCRIPT + "\nexit(1)", PAIRS)) == (0.0, 0, 2, "does not run")


def test_tests_with_an_entry_point() -> None:
    check = "METADATA = {}\ndef check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(2, 2) == 4\n"
    named = {"entry_point": "add"}
    assert outcome(scored(GOOD, check, named)) == (1.0, 1, 1, "passed")
    assert outcome(scored("def add(a, b): return 3", check, named)) == (0.0, 0, 1, "failed")
    assert outcome(scored("def other(): pass", check, named)) == (0.0, 0, 1, "failed")


@pytest.mark.parametrize(
    ("returned", "expected", "passed"),
    [
        ("[[1, 2.0]]", "[[1, 2]]", 1.0),
        ("((1, 2),)", "[[1, 2]]", 1.0),
        ("True", "1", 0.0),
        ("1", "true", 0.0),
        ("None", "null", 1.0),
        ("{1: 'a'}", '{"1": "a"}', 1.0),
        ("'1'", "1", 0.0),
        ("10**400", "1" + "0" * 400, 1.0),
        ("[1, 2, 3]", "[1, 2]", 0.0),
    ],
)
def test_tests_of_calls_compare_values_and_kinds(
    returned: str, expected: str, passed: float
) -> None:
    tests = [{"input": "[1]\n2", "output": expected, "testtype": "functional"}]
    program = f"class Solution:\n    def f(self, a, b):\n        assert (a, b) == ([1], 2)\n        return {returned}"
    assert scored(program, tests, {"entry_point": "f"}).value == passed


@pytest.mark.parametrize(
    ("program", "test"),
    [
        ("def f(x): return x", "for v in (None, True, 7, -2**80, 1.5, 2j, 'ä', b'x'): assert f(v) == v"),
        ("def f(x): return x", "for v in ([1], (1, (2,)), {3}, {(1, 2): [None]}): assert f(v) == v"),
        ("def f(x): return x", "for v in ([1], (1,), {1}, {}): assert type(f(v)) is type(v)"),
        ("def f(x): return x", "import math\nassert math.isnan(f(math.nan)) and f(math.inf) == math.inf"),
        ("from collections import *\ndef f(): return Counter('aab')", "assert f() == {'a': 2, 'b': 1}"),
        ("from decimal import *\ndef f(): return Decimal('0.1')", "from decimal import *\nassert f() == Decimal('.1')"),
        ("def f():\n    yield 1\n    yield 2", "assert list(f()) == [1, 2]"),
        ("def f(): return lambda x: x + 1", "assert f()(2) == 3"),
        ("def f():\n    raise KeyError('x')", "try:\n    f()\n    assert False\nexcept KeyError: assert True"),
        ("class E(ValueError): pass\ndef f(): raise E",
         "try:\n    f()\n    ok = False\nexcept ValueError: ok = True\nassert ok"),
        ("class P:\n    def __init__(self, a): self.a = a\ndef f(ps): return sum(p.a for p in ps)",
         "assert f([P(1), P(2)]) == 3"),
        ("class S:\n    def __init__(self): self.n = 0\n    def up(self): self.n += 1",
         "s = S()\ns.up()\nassert s.n == 1"),
        ("import math\ndef area(r): return math.pi * r", "assert math.isclose(area(1), math.pi)"),
        ("N = 3\ndef f(*, k): return k", "assert f(k=N) == 3"),
    ],
)  # fmt: skip
def test_what_crosses_between_program_and_tests(program: str, test: str) -> None:
    assert outcome(scored(program, [test])) == (1.0, 1, 1, "passed")


def test_setup_runs_on_the_side_of_the_tests() -> None:
    columns = {"setup": "import math\nexpected = 3"}
    assert scored(GOOD, ["assert math.ceil(add(1, 2)) == expected"], columns).value == 1.0
    assert (
        scored("def add(a, b): return expected", ["assert add(1, 2) == expected"], columns).value
        == 0.0
    )


def test_each_test_gets_a_fresh_process() -> None:
    program = "calls = []\ndef add(a, b):\n    calls.append(1)\n    return a + b if len(calls) == 1 else 0"
    assert scored(program, TESTS).value == 1.0
    ends = "import os\ndef add(a, b):\n    if a == 1: os._exit(0)\n    return a + b"
    assert outcome(scored(ends, TESTS, credit="share")) == (0.5, 1, 2, "failed")
    loops = "def add(a, b):\n    while a == 1: pass\n    return a + b"
    assert outcome(scored(loops, TESTS, credit="share")) == (0.5, 1, 2, "timeout")


def test_partial_credit() -> None:
    weights = {"compile_weight": 1.0, "run_weight": 2.0, "tests_weight": 4.0, "lint_weight": 1.0}
    assert scored(GOOD, TESTS, **weights).value == 1.0
    assert scored("import os\n" + GOOD, TESTS, **weights).value == 7 / 8
    assert scored("def add(a, b): return 0", TESTS, **weights).value == 4 / 8
    assert scored("import os\nraise ValueError", TESTS, **weights).value == 1 / 8
    assert scored("def add(a, b:", TESTS, **weights).value == 0.0
    assert scored("", TESTS, **weights).value == 0.0


def test_the_linter_hears_no_excuses() -> None:
    lint = {"lint_weight": 1.0, "tests_weight": 0.0}
    assert scored("x = 1", **lint).value == 1.0
    assert scored("import os  # noqa", **lint).value == 0.0
    assert scored("# ruff: noqa\nimport os", **lint).value == 0.0
    assert scored("x = 1;y = 2", lint_rules=["E702"], **lint).value == 0.0


def test_a_missing_linter_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    code_module.linter.cache_clear()
    try:
        with pytest.raises(code_module.RewardError, match="needs ruff"):
            code_module.linter()
    finally:
        code_module.linter.cache_clear()


@pytest.mark.parametrize(
    "text",
    [
        "<think>\n```\n{}\n```\n</think> I do not know.",
        "<think>\n```\n{}\n```",
        "```\n{}\n```\n</think>",
    ],
)
def test_code_in_a_thought_is_no_answer(text: str) -> None:
    result = reward("code", **QUICK)(row(text.format(GOOD), columns={"tests": TESTS}))
    assert isinstance(result, RewardResult)
    assert outcome(result) == (0.0, 0, 2, "no code")


@pytest.mark.parametrize(
    "mark", ["# '\u2028 \x0c \x85'", "x = '\u2028\x0c\x85\x1c'", "# -*- coding: latin-1 -*-"]
)
def test_what_python_can_read_compiles(mark: str) -> None:
    assert scored(f"{mark}\n{GOOD}", TESTS).value == 1.0
    assert scored(f"\ufeff{mark}\n{GOOD}", TESTS).value == 1.0


def test_a_row_may_be_given_less_time_than_a_test() -> None:
    assert scored(GOOD, TESTS, seconds=9, row_seconds=3.0).value == 1.0


def test_prints_of_tests_are_nothing_to_a_program() -> None:
    assert scored(GOOD, [f"print('x' * 10**7)\n{TESTS[0]}"]).value == 1.0


@pytest.mark.parametrize(
    "raised", ["ExceptionGroup('', [OSError()])", "UnicodeTranslateError('', 0, 1, '')"]
)
def test_a_type_error_is_one_that_the_program_raised(raised: str) -> None:
    test = "try:\n    add(1, 2)\n    ok = False\nexcept TypeError: ok = True\nassert ok"
    assert scored(f"def add(a, b): raise {raised}", [test]).value == 0.0


def test_without_tests() -> None:
    assert scored(GOOD) == RewardResult(None)
    runs = {"tests_weight": 0.0, "run_weight": 1.0}
    assert outcome(scored("print(1)", **runs)) == (1.0, 0, 0, "ran")
    assert outcome(scored("1 / 0", **runs)) == (0.0, 0, 0, "does not run")


def test_no_code_is_zero_and_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_module, "run", None)
    built = reward("code")
    for text in ("", "add = 3", "```python\ncut off", "```python\n \n```", "```c\nint x;\n```"):
        result = built(row(text, columns={"tests": TESTS}))
        assert isinstance(result, RewardResult)
        assert outcome(result) == (0.0, 0, 2, "no code")


def test_the_whole_text_as_code() -> None:
    result = reward("code", fenced=False, **QUICK)(row(GOOD, columns={"tests": TESTS}))
    assert isinstance(result, RewardResult)
    assert result.value == 1.0


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        (["add(1, 2)"], "asserts nothing"),
        ("def check(candidate):\n    candidate(1, 2)", "asserts nothing"),
        (["assert True"], "asserts nothing"),
        (["assert (add(1, 2) == 4, 'always true')"], "asserts nothing"),
        (["assert 1 + 2 == 3"], "uses nothing of the program"),
        (["assert math.isclose(1, 1)"], "uses nothing of the program"),
        (["assert np.allclose(add(1, 2), 3)"], "no module 'np'"),
        (["assert add(1, 2 == 3"], "SyntaxError"),
        (["import numpy\nassert add(1, 2) == 3"], "no module 'numpy'"),
        (["assert add(lambda: 1, 2) == 3"], "a function, which is no plain data"),
        (["try: add(object(), 2)\nexcept BaseException: pass\nassert add(1, 2)"], "a object"),
        (7, "allowed are"),
    ],
)
def test_broken_tests_are_errors_and_no_zeros(tests: Any, message: str) -> None:
    with pytest.raises(code_module.RewardError, match=message):
        scored(GOOD, tests)


def test_a_broken_setup_is_an_error() -> None:
    with pytest.raises(code_module.RewardError, match=r"the tests are broken: ZeroDivisionError"):
        scored(GOOD, TESTS, {"setup": "1 / 0"})
    with pytest.raises(code_module.RewardError, match="could not be loaded"):
        scored(GOOD, TESTS, {"setup": "import os; os._exit(0)"})


def test_weights_must_say_something() -> None:
    with pytest.raises(ValidationError, match="nothing to reward"):
        reward("code", tests_weight=0)


FORGED = r"""
import json, os, struct
def frame(message):
    data = json.dumps(message).encode()
    return struct.pack('!I', len(data)) + data
lines = b'{"loaded": true}\n{"compiled": true}\n' + b'{"ran": true}\n{"passed": true, "why": ""}\n' * 2
frames = b''.join(map(frame, [{"ran": True}, {"value": True}, {"end": True}, {"passed": True}] * 3))
for fd in range(100):
    for data in (lines, frames):
        try:
            os.write(fd, data)
        except OSError:
            pass
"""
SEARCH = r"""
import gc, os, sys
def found(a):
    texts = [repr(o)[:100000] for o in gc.get_objects()]
    frame = sys._getframe()
    while frame:
        texts.append(repr((frame.f_locals, frame.f_globals, frame.f_code.co_consts))[:100000])
        frame = frame.f_back
    texts += [repr(sys.argv), repr(os.environ)]
    for top in ('/cases.json', '/harness', '/tmp', '/proc/1', '/proc/2', '/proc/self', '/dev/fd'):
        for folder, _, names in os.walk(top):
            texts += [open(os.path.join(folder, name), errors='replace').read(10**6) for name in names]
        if os.path.isfile(top):
            texts.append(open(top).read())
    secret = str(int('1234567') * 8)
    return next((int(secret) for text in texts if secret in text), 0)
"""
EXPLOITS = {
    "equal to all": "class Any(int):\n    def __eq__(self, other): return True\n    __ne__ = lambda s, o: False\n"
    "    def __hash__(self): return 3\ndef add(a, b): return Any()",
    "equal object": "class Any:\n    def __eq__(self, other): return True\n    def __bool__(self): return True\n"
    "def add(a, b): return Any()",
    "exit at once": "import sys\nsys.exit(0)",
    "hard exit at once": "import os\nos._exit(0)",
    "exit in the call": "import os\ndef add(a, b): os._exit(0)",
    "system exit in the call": "def add(a, b): raise SystemExit(0)",
    "killed": "import os\ndef add(a, b): os.kill(os.getpid(), 9)",
    "kills all": "import os\ndef add(a, b):\n    os.kill(os.getppid(), 9)\n    os.kill(-1, 9)",
    "exit at the end": "import atexit, os\natexit.register(os._exit, 0)\ndef add(a, b): return 0",
    "no assertion errors": "import builtins\nbuiltins.AssertionError = type('A', (BaseException,), {})\n"
    "builtins.__build_class__ = builtins.__import__ = None\ndef add(a, b): return 0",
    "patched modules": "import sys, json, os, unittest\nunittest.TestCase.assertEqual = lambda *a: None\n"
    "json.dumps = lambda m: '{\"value\": true, \"passed\": true}'\n"
    "for n in list(sys.modules): sys.modules[n] = None\ndef add(a, b): return 0",
    "patched wire": "import rollbook.components.rewards.code_wire as w, rollbook.components.rewards.code_program as p\n"
    "w.encode = p.encode = lambda v, refer: {'ref': 0}\ndef add(a, b): return 0",
    "prints verdicts": "print('{\"passed\": true}')\nprint('OK')\nprint('Ran 2 tests')\ndef add(a, b):\n"
    "    print('{\"passed\": true, \"why\": \"\"}', flush=True)",
    "forges messages": FORGED + "def add(a, b): return 0",
    "forges messages and ends": FORGED + "os._exit(0)",
    "edits the tests": "def add(a, b): return 0\nimport os\n"
    "for top in ('/cases.json', '/program.py', '/harness', '/tmp'):\n"
    "    for path in [top] + [os.path.join(d, n) for d, _, ns in os.walk(top) for n in ns]:\n"
    "        try: open(path, 'w').write('{\"tests\": []}')\n        except OSError: pass",
    "replaces its program": "import os\nos.execv('/proc/self/exe', ['x'])",
    "ends the loop of the tests": "def add(a, b): raise StopIteration",
    "takes a test's names": "def abs(x): return 0\ndef all(x): return True\ndef len(x): return 0\n"
    "def check(f): pass\n__reached__ = print\ndef add(a, b): return 0",
    "asserts for itself": "def add(a, b): return 0\ndef test_add(): assert True\nassert True",
    "raises assertion errors": "def add(a, b): raise AssertionError",
    "too deep": "def add(a, b):\n    x = []\n    for _ in range(10**5): x = [x]\n    return x",
    "too long": "def add(a, b): return 'x' * 10**8",
    "no name": "def add(a, b): return type('', (), {})()",
    "without end": "def add(a, b):\n    import itertools\n    return itertools.count()",
    "threads": "import threading\ndef spin():\n    while True: pass\n"
    "threads = [threading.Thread(target=spin) for _ in range(3)]\n[t.start() for t in threads]\n"
    "def add(a, b): return 0",
    "memory": "x = [0]\nwhile True: x += x",
    "recursion": "def add(a, b): return add(a, b)",
    "crash": "import ctypes\nctypes.string_at(0)",
    "invalid text": "def add(a, b): return '\\ud800'",
    "background": "import os, time\nif not os.fork():\n    os.setsid(); time.sleep(1000)\ndef add(a, b): return 0",
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
}  # fmt: skip


@pytest.mark.parametrize("name", EXPLOITS)
def test_an_exploit_passes_no_test_of_a_function(name: str) -> None:
    tests = [*TESTS, "assert all(map(lambda x: add(*x) == sum(x), [(1, 2), (3, 4)]))"]
    result = scored(EXPLOITS[name], tests, row_seconds=3.0)
    assert outcome(result)[:3] == (0.0, 0, 3)


IN_SCRIPTS = (
    *("exit at once", "hard exit at once", "exit at the end", "patched modules", "prints verdicts"),
    *("forges messages and ends", "edits the tests", "memory", "crash", "background"),
)


@pytest.mark.parametrize("name", IN_SCRIPTS)
def test_an_exploit_passes_no_test_of_output(name: str) -> None:
    result = scored(EXPLOITS[name], PAIRS[:1])
    assert outcome(result)[:3] == (0.0, 0, 1)


def test_expected_values_are_nowhere_to_be_found() -> None:
    tests = ["assert found(1) == 9876536"]
    assert outcome(scored(SEARCH, tests)) == (0.0, 0, 1, "failed")
    pairs = [{"input": "1", "output": "9876536"}]
    assert scored(f"{SEARCH}\nprint(found(1))", pairs).value == 0.0
    called = [{"input": "1", "output": "9876536"}]
    assert scored(SEARCH, called, {"entry_point": "found"}).value == 0.0


def test_the_search_would_find_what_is_there() -> None:
    """The test above could not fail otherwise."""
    assert scored(SEARCH + "\nhidden = [9876536]", ["assert found(1) == 9876536"]).value == 1.0


def test_an_exit_does_not_count_as_an_expected_error() -> None:
    tests = [
        "try:\n    add('a', None)\n    ok = False\nexcept BaseException:\n    ok = True\nassert ok"
    ]
    assert scored("def add(a, b): raise TypeError", tests).value == 1.0
    assert scored("import os\ndef add(a, b): os._exit(0)", tests).value == 0.0


def test_modules_of_python_are_not_taken_from_a_program() -> None:
    fake = "class math:\n    isclose = staticmethod(lambda *a, **k: True)\ndef add(a, b): return 0"
    assert scored(fake, ["assert math.isclose(add(1, 2), 3)"]).value == 0.0


def test_long_messages_of_a_program_cannot_break_the_verdict() -> None:
    noisy = "def add(a, b): raise ValueError('\\U0001f600' * 1000)"
    assert outcome(scored(noisy, TESTS[:1] * 600, row_seconds=30.0))[0] == 0.0


def test_a_loop_over_nothing_asserts_nothing() -> None:
    tests = ["for value in add(1, 2):\n    assert value > 0"]
    assert scored("def add(a, b): return []", tests).value == 0.0
    assert scored("def add(a, b): return [1]", tests).value == 1.0


def test_arguments_are_copies() -> None:
    tests = ["given = [3, 1]\nassert add(given, 0) == sorted(given)"]
    assert scored("def add(a, b):\n    a.clear()\n    return []", tests).value == 0.0


def test_hostile_rows_leave_no_process_and_change_no_verdict() -> None:
    """A few rounds of everything; nothing of one row may reach the next."""
    for name in ("kills all", "background", "forges messages", "edits the tests"):
        assert scored(EXPLOITS[name], TESTS).value == 0.0
        assert scored(GOOD, TESTS).value == 1.0
