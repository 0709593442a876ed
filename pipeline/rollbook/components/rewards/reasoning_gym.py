"""reasoning_gym: what the scorer of a reasoning-gym task (arXiv 2505.24760) says of the answer, mostly from 0 to 1.

For prompts of the source `reasoning_gym`, whose tables hold all that the scorer needs. The answer is what follows the
last `</think>`, of that what stands in `<answer>…</answer>` if there is such a pair, without white space around it.
Where a prompt is of another source, the reward does not apply.

Some scorers hand the answer to Python's `eval` or SymPy's `parse_expr`, which runs code. These are shown only answers
that are plain expressions: numbers, words, lists, arithmetic without towers of powers, functions of mathematics. Any
other answer, and one that makes the scorer raise, scores 0; `<label>_reason` says why. Give it a `time_limit`.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable
from functools import cache
from typing import Any

from rollbook.components.reasoning_tasks import COLUMN, unpacked
from rollbook.components.rewards.answers import behind_thought, tagged_answer
from rollbook.components.rewards.base import Reward, RewardInput, RewardResult
from rollbook.core.errors import RewardError

RUNS_CODE = {"eval", "exec", "parse_expr", "sympify"}
MAX_CHARACTERS = 2_000
MAX_NUMBER = 10**12
MAX_EXPONENT = 100
FUNCTIONS = frozenset(
    (
        *("Abs", "erf", "exp", "ln", "log", "sqrt", "sin", "cos", "tan", "cot", "csc", "sec"),
        *("sinh", "cosh", "tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh"),
    )
)
PLAIN_NODES = (
    *(ast.Expression, ast.Constant, ast.Name, ast.Load, ast.List, ast.Tuple),
    *(ast.BinOp, ast.UnaryOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow),
    *(ast.UAdd, ast.USub, ast.Call),
)
NOTHING_TO_CALL = re.compile(r"[\w\s.,;:!+-]*")
"""What is no Python, such as a matrix or a chess board in lines, and could not call anything if it were."""


class ReasoningGym(Reward):
    """Asks the task's own scorer."""

    def prepare(self) -> None:
        import reasoning_gym  # noqa: F401

    def __call__(self, row: RewardInput) -> RewardResult:
        column = row.columns.get(COLUMN)
        if column is None:
            return RewardResult(None)
        try:
            data_set, question = unpacked(column)
        except (ValueError, KeyError, TypeError) as error:
            raise RewardError(f"{row.prompt_id}: column {COLUMN}: {error}") from error
        text = behind_thought(row.text, row.prompt)
        tagged = tagged_answer(text)
        answer = (text if tagged is None else tagged).strip()
        if runs_code(type(data_set).score_answer) and not is_plain(answer):
            return self._nothing("is no plain expression")
        try:
            value = float(data_set.score_answer(answer, question))
        except Exception as error:
            return self._nothing(type(error).__name__)
        return RewardResult(value)

    def _nothing(self, reason: str) -> RewardResult:
        return RewardResult(0.0, log={f"{self.title}_reason": reason})


@cache
def runs_code(scorer: Callable[..., Any]) -> bool:
    """Whether a scorer, the `score_answer` of a class of data sets, may run its argument as code."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(scorer)))
    called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return any(_name_of(each) in RUNS_CODE for each in called)


def is_plain(answer: str) -> bool:
    """Whether an answer that is evaluated computes a value quickly and does nothing else."""
    if len(answer) > MAX_CHARACTERS:
        return False
    try:
        tree = ast.parse(answer, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return NOTHING_TO_CALL.fullmatch(answer) is not None
    return all(map(_is_plain_node, ast.walk(tree)))


def _is_plain_node(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        value: Any = node.value
        return not isinstance(value, (int, float)) or abs(value) <= MAX_NUMBER
    if isinstance(node, ast.Call):
        return _name_of(node.func) in FUNCTIONS and isinstance(node.func, ast.Name)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        small = all(
            not isinstance(part, ast.Constant)
            or (isinstance(part.value, (int, float)) and abs(part.value) <= MAX_EXPONENT)
            for part in ast.walk(node.right)
        )
        grows = any(
            isinstance(part, (ast.Pow, ast.Mult, ast.Call)) for part in ast.walk(node.right)
        ) or any(isinstance(part, ast.Pow) for part in ast.walk(node.left))
        return small and not grows
    return isinstance(node, PLAIN_NODES)


def _name_of(function: ast.expr) -> str:
    return getattr(function, "attr", getattr(function, "id", ""))
