import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rollbook.components.rewards import math_child
from rollbook.components.rewards.base import RewardResult
from rollbook.components.rewards.math_equality import is_expression
from rollbook.core.errors import RewardError
from tests.unit.components.rewards.rows import reward, row

ROOT = Path(__file__).parents[4]


def scored(text: str, reference: str | None, **options: Any) -> RewardResult:
    changes = {name: options.pop(name) for name in ("prompt",) if name in options}
    result = reward("math_answer", **options)(row(text, reference, **changes))
    assert isinstance(result, RewardResult)
    return result


RIGHT = [
    (r"\boxed{42}", "42"),
    ("The answer is 42.", "42"),
    ("42", "#### 42"),
    ("so it is\n#### 42", r"20 + 22 = 42\n#### 42"),
    ("1234", "#### 1,234"),
    (r"\boxed{1,234}", "so 1000 and 234.\n#### 1,234"),
    ("$5", "5 = 2 + 3\n#### $5"),
    ("The answer is 5.", "#### $5"),
    (r"\boxed{-3}", "#### -3"),
    ("0.25", "#### 0.25"),
    (r"$\frac{1}{4}$", "#### .25"),
    ("5.50", "#### $5.50."),
    (r"\boxed{0.5}", r"\frac{1}{2}"),
    (r"so $\frac{2}{4}$", "1/2"),
    (r"\boxed{\frac{\sqrt{2}}{2}}", r"\frac{1}{\sqrt2}"),
    (r"\boxed{50\%}", "0.5"),
    ("0.5", r"50\%"),
    (r"\boxed{50}", "50%"),
    (r"\boxed{1,234}", "1234"),
    (r"\boxed{1\,234}", "1234"),
    (r"\boxed{(0, 1]}", "(0,1]"),
    ("(0, 1]", r"\left(0,1\right]"),
    (r"\boxed{1 \le x \le 2}", "[1,2]"),
    (r"\boxed{x = 3}", "3"),
    ("x=3", "3"),
    (r"\boxed{\{2, 1\}}", r"\{1,2\}"),
    (r"\boxed{1} and \boxed{2}", "1,2"),
    (r"\boxed{3 \text{ cm}}", "3"),
    ("3 cm", r"3\text{ cm}"),
    (r"\boxed{5\text{ dollars}}", r"\$5"),
    (r"$\boxed{x^2 + 2x + 1}$", "(x+1)^2"),
    (r"\sqrt{8}", r"2\sqrt{2}"),
    (r"\boxed{\text{No solution.}}", "no solution"),
    (r"\boxed{\text{(B)}}", "B"),
    (r"first \boxed{3}, no, \boxed{4}", "4"),
    ("<think>8, maybe 9</think> 7", "7"),
    ("<think>8</think><answer>7</answer>", "7"),
    (r"<answer>\frac{14}{2}</answer>", "7"),
    ("1 234 567", "1234567"),
    ("The answer isn't 8, it's 7", "7"),
    ("**7**", "7"),
    ("The answer is **7**.", "7"),
    ("`7`", "7"),
    ("*7*", "7"),
    ('"7"', "7"),
    (r"\[7\]", "7"),
    ("\\[\n7.5\n\\]", "15/2"),
    (r"\[ \boxed{7} \]", "7"),
    (r"\(7\)", "7"),
    ("$$7$$", "7"),
    ("7,", "7"),
    ("= 7", "7"),
    (": 7", "7"),
    (r"7\\", "7"),
    (r"\boxed{7\,}", "7"),
    ("Is it 6 or 7? It is 7.", "7"),
    ("The answer is (B).", "B"),
    ("Answer: B", r"\text{(B)}"),
    ("**Answer:** B", "B"),
    (r"the answer is \textbf{(B)}", "B"),
    ("The correct option is B.", "B"),
    ("**Paris**", "Paris"),
    ("The answer is Paris.", "Paris"),
    ("1.5e3", "1500"),
    ("1500", "1.5E+3"),
    ("0.00001", "1e-5"),
    (r"6.02\times10^{23}", "6.02e23"),
    ("1 1/2", "1.5"),
    ("5/3", "1 2/3"),
    ("½", "0.5"),
    ("1½", "3/2"),
    ("7²", "49"),
    ("2⁻¹", "0.5"),
    ("30°", "30"),
    ("–7", "-7"),
    (r"\{\}", r"\emptyset"),
    (
        r"\begin{bmatrix}1&2\\3&4\end{bmatrix}",
        r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
    ),
    ("0.5", "0.5%"),
    ("0.333333", r"\frac13"),
    (r"\sin(\pi)", "0"),
    ("It is not $\\frac13$ but $\\frac12$", "0.5"),
    (r"\boxed{-\infty}", r"-\infty"),
    (r"\boxed{\begin{pmatrix}1\\2\end{pmatrix}}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
]
WRONG = [
    ("", "7"),
    (" \n ", "7"),
    ("8", "7"),
    ("2x+1", "2"),  # math-verify alone finds 2
    ("7**9", "7"),  # and 7
    ("9**9**9", "7"),
    (r"\boxed{10^9 \bmod 7}", "7"),
    (r"\sqrt{2}", "2"),
    (r"\boxed{7} or \boxed{8}", "8"),
    (r"\boxed{}", "7"),
    ("The answer is not 7, it is 8.", "7"),
    ("8 is the answer, not 7", "7"),
    (r"\boxed{8}, not \boxed{7}", "7"),
    (r"It isn't \boxed{7}", "7"),
    ("The answer is not Paris.", "Paris"),
    ("The answer is 7 or 8", "7"),
    ("The answer is 7 or 8", "8"),
    ("Either 8 or 7.", "7"),
    ("It is one of 5, 6, or 7.", "7"),
    ("The answer is 2x+1.", "1"),
    ("The answer is A or B", "A"),
    ("answer: A, B", "B"),
    (r"\boxed{x=6 \lor x=7}", "7"),
    ("3–10", "-7"),
    ("1 1/2", "1/2"),
    ("2e-7", "1e-7"),
    ("0", "0.0000001"),
    (r"9.1\times10^{-31}", r"1.6\times10^{-19}"),
    ("0.0000014", "0.000001"),
    ("1e999999999", "7"),
    ("5" * 20_000, "7"),
    ("5," * 10_000, "7"),
    ("answer is " * 2_000 + "\n" * 9_000 + "x", "7"),
    ("`" * 20_000, "7"),
    ("." * 20_000 + "x", "7"),
    ("*" * 20_000, "7"),
    ("0 1 2 3 4 5 6 7", "0"),
    ("0 1 2 3 4 5 6 7", "7"),
    ("pairs", "paris"),  # a·i·p·r·s in any order
    (r"\boxed{(0,1)}", "(0,1]"),
    (r"\boxed{0.33}", r"\frac13"),
    ("７", "7"),
    ("<think>7", "7"),
    ("<think>7</think>", "7"),
    ("<think>7</think><answer></answer>", "7"),
    (r"I said \boxed{7} earlier. \boxed{8}", "7"),
    ("(" * 5000 + "7" + ")" * 5000, "7"),
    (r"$\frac{" * 500 + "7" + "}{1}$" * 500, "8"),
    (r"\boxed{" * 3000, "7"),
    ("$" * 10_001, "7"),
    ("answer: " * 20_000, "7"),
    ("\x00\ud800", "7"),
]
HOSTILE = r"\prod_{k=1}^{10000000} k"


@pytest.mark.parametrize(("text", "reference"), RIGHT)
def test_the_same_in_another_notation(text: str, reference: str) -> None:
    assert scored(text, reference).value == 1.0


@pytest.mark.parametrize(("text", "reference"), WRONG)
def test_anything_else(text: str, reference: str) -> None:
    assert scored(text, reference).value == 0.0


def test_the_prompt_may_have_opened_the_thought() -> None:
    assert scored("7", "7", prompt="3+4=<think>\n").value == 0.0
    assert scored("8</think>7", "7", prompt="3+4=<think>\n").value == 1.0


def test_only_what_is_boxed_counts_if_asked() -> None:
    assert scored("7", "7", where="boxed").value == 0.0
    assert scored(r"\boxed{7}", "7", where="boxed").value == 1.0
    assert scored(" ".join(map(str, range(101))), "100", where="boxed").value == 0.0


def test_what_it_logs() -> None:
    assert scored(r"it is \boxed{\frac12}", "0.5").log == {"math_answer_answer": r"\frac12"}
    assert scored("hm", None).log == {}
    assert scored("", "7", label="m").log == {"m_reason": "no answer found"}


@pytest.mark.parametrize(
    "text", [r"so \boxed{\binom{10000000}{5000000}}", "(" * 300 + "7" + ")" * 300]
)
def test_a_hostile_answer_is_ended_and_wrong(text: str) -> None:
    started = time.monotonic()
    result = scored(text, "7", limit=0.3)
    assert result.value == 0.0
    assert result.log == {"math_answer_reason": "took longer than 0.3 s"}
    assert time.monotonic() - started < 30
    assert scored("7", "7").value == 1.0


@pytest.mark.parametrize(
    "text", [r"\boxed{9^{9^{9^9}}}", "10^{10^{10}}", "$200000000!$", "$((9!)!)!$", "0.1^{-9999999}"]
)
def test_what_is_too_large_is_not_even_tried(text: str) -> None:
    started = time.monotonic()
    result = scored(text, "7", limit=60.0)
    assert result.value == 0.0
    assert result.log["math_answer_reason"] == "too large to compare"
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        (r"\boxed{9^{9^9}}", "9^{9^9}"),
        ("1^{99999999999}", "1"),
        ("2^{1000}", "4^{500}"),
        ("20!/19!", "20"),
    ],
)
def test_what_is_large_and_right(text: str, reference: str) -> None:
    assert scored(text, reference).value == 1.0


def test_a_missing_library_is_said_with_the_way_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "math_verify.py").write_text("raise ImportError('no such library')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    math_child._comparisons.close()
    with pytest.raises(RewardError, match="cannot be compared: no such library") as caught:
        scored("7", "7")
    assert "pip install" in caught.value.hint


def test_a_hostile_reference_is_an_error_each_time_and_slow_once() -> None:
    for _ in range(2):
        with pytest.raises(RewardError, match=r"reference answer '.*prod.* took longer than 0.3 s"):
            scored("7", HOSTILE, limit=0.3)
    child = math_child._comparisons.child
    with pytest.raises(RewardError):
        scored("8", HOSTILE, limit=0.3)
    assert math_child._comparisons.child is child
    with pytest.raises(RewardError, match="no answer found"):
        scored("7", " ")


def test_threads_say_the_same() -> None:
    """math-verify's own limits raise outside of the main thread."""
    cases = [(*case, 1.0) for case in RIGHT[:8]] + [(*case, 0.0) for case in WRONG[:8]]
    with ThreadPoolExecutor(4) as pool:
        values = list(pool.map(lambda case: scored(case[0], case[1]).value, cases))
    assert values == [case[2] for case in cases]


def test_a_child_that_died_with_its_thread_is_replaced() -> None:
    math_child._comparisons.close()
    thread = threading.Thread(target=lambda: scored("7", "7"))
    thread.start()
    thread.join()
    assert scored("7", "7").value == 1.0
    child = math_child._comparisons.child
    assert child is not None
    os.kill(child.process.pid, signal.SIGKILL)
    assert scored("7", "7").value == 1.0


def test_a_forked_process_starts_its_own() -> None:
    assert scored("7", "7").value == 1.0
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(writing, json.dumps([scored("7", "7").value, scored("8", "7").value]).encode())
        math_child._comparisons.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert json.loads(os.read(reading, 100)) == [1.0, 0.0]
    assert scored("8", "7").value == 0.0
    os.close(reading)
    os.close(writing)


PROGRAM = """
import os, signal, sys
from rollbook.components.rewards.math_child import compare, _comparisons
compare("7", "7", False, 5.0)
assert "sympy" not in sys.modules and "torch" not in sys.modules
print(_comparisons.child.process.pid, flush=True)
{end}
"""


@pytest.mark.parametrize(
    "end",
    [
        "",
        "os._exit(0)",
        "os.kill(os.getpid(), signal.SIGKILL)",
        "import threading; threading.Timer(0.5, os.kill, (os.getpid(), 9)).start(); "
        r"compare('7', r'\prod_{k=1}^{10000000} k', False, 60.0)",
    ],
)
def test_the_child_ends_with_its_parent(end: str) -> None:
    program = [sys.executable, "-c", PROGRAM.replace("{end}", end)]
    found = subprocess.run(program, capture_output=True, text=True, cwd=ROOT, check=False)
    pid = int(found.stdout)
    deadline = time.monotonic() + 10
    while (state := _state(pid)) not in (None, "Z") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert state in (None, "Z"), found.stderr


def _state(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


@pytest.mark.parametrize("text", ["7", r"\frac{1}{2}", "2x + 1", r"\sin x", r"3 \text{ dollars}"])
def test_is_an_expression(text: str) -> None:
    assert is_expression(text)


@pytest.mark.parametrize("text", ["", " ", "The answer is 7", r"\text{no solution}", "7!? 8#"])
def test_is_no_expression(text: str) -> None:
    assert not is_expression(text)
