r"""Whether two texts give the same mathematical answer, by math-verify; and the program that `math_child.py` talks to.

math-verify (0.9) and SymPy are imported here only, and only when something is compared. Its own time limits are
`signal.alarm` calls, which raise outside of the main thread and which long arithmetic in C does not notice; they are
switched off. The program instead asks the kernel to end it when a comparison has used up its processor time.

What is looked at: the last `\boxed{…}` (or several that belong together), else a text that is an expression as a whole,
else one that ends with `answer is …`, else what math-verify finds (final answer, LaTeX between dollars, last number).
What follows a `not`, and numbers with an `or` between them, are left out. Three numbers in a row without anything
between them are no answer. Words are compared as words: as LaTeX they would be products of letters, equal to every
anagram. Units are not compared. Numbers below 1 must agree in three digits: math-verify alone rounds to six decimals,
so that it takes 2e-7 for 1e-7.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
import resource
import signal
import sys
import unicodedata
from functools import lru_cache
from typing import Any

from rollbook.components.rewards.answers import final_answer, last_boxes
from rollbook.core.process import die_with_parent

MAX_CHARACTERS = 20_000
"""Only the end of a longer text is looked at; the library's expressions take time that grows with its square."""
MAX_EXPRESSION = 1_000
MAX_DIGITS = 1_000_000
"""Of a power or a factorial. Larger ones are not worked out and equal only what is written the same; it saves waiting
for `limit` in the plainest cases."""
SHOWN_CHARACTERS = 80
MEMORY_BYTES = 4 * 2**30
REFERENCES_KEPT = 256
TEXT = re.compile(r"\\(?:text|mathrm|textbf|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
COMMAND = re.compile(
    r"\\(?:begin|end)\{[a-z]+\*?\}|\\[A-Za-z]+|\b(?:sqrt|sin|cos|tan|log|exp|inf|pi)\b"
)
WORD = re.compile(r"[^\W\d_]{3,}")
MATHEMATICS = re.compile(r"[\w\s\\{}()\[\].,;:|<>=+\-*/^!%°'&∞π√≤≥≠×÷·∪∩∈±]+")
NUMBERS_IN_A_ROW = re.compile(r"(?<!\S)\d+(?:\s+\d+){2,}(?!\S)")
THOUSANDS = re.compile(r"\d{1,3}(?: \d{3})+")
NEGATED = re.compile(r"(?:\bnot|n['’]t)\s+(?:\$[^$\n]*\$|\S+)", re.IGNORECASE)
NEGATED_BOX = re.compile(r"(?:\bnot|n['’]t)\s+\$?\\boxed\{[^{}]*\}", re.IGNORECASE)
NUMBER = r"\$?[-−]?\d++(?:\.\d++)?\$?"
LISTED = re.compile(
    rf"(?<![\d.]){NUMBER}(?:\s*+(?:,(?:\s*+or\b)?|or\b)\s*+{NUMBER})++", re.IGNORECASE
)
STATED = re.compile(
    r"\b(?:answer|option|choice)\b[\s*_]*+(?:is(?=[\s*_:])|:|=)[\s*_:]*+(?P<answer>[^\s*_:][^\n]{0,200})\s*$",
    re.IGNORECASE,
)
"""The end of a text that states its answer."""
WRAPPED = re.compile(
    r"""\s*(?:\*\*(?P<a>[^*]+)\*\*|\*(?P<b>[^*]+)\*|__(?P<c>[^_]+)__|`+(?P<d>[^`]+)`+|"(?P<e>[^"]+)"|“(?P<f>[^”]+)”|"""
    r"""\\\[(?P<g>(?:(?!\\[\[\]]).)+)\\\]|\\\((?P<h>(?:(?!\\[()]).)+)\\\)|\$\$(?P<i>[^$]+)\$\$|\$(?P<j>[^$]+)\$)"""
    r"""[\s.]*""",
    re.DOTALL,
)
"""Emphasis, code, quotation marks or dollars around a whole answer."""
WRAPPERS = 4
SCIENTIFIC = re.compile(r"(?<![\w.\\}])([+-]?(?:\d+(?:\.\d*)?|\.\d+))[eE]([+-]?\d{1,9})(?![\w.])")
MIXED = re.compile(r"(?<![\w./^{])(\d+) (\d+)/(\d+)(?![\w./^])")
SUPERSCRIPTS = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")
FRACTION = re.compile("[¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞]")
EN_DASH = re.compile(r"(?<![^=(,\[{\s])–(?=[\d.\\])")
"""As a sign; between numbers it may mean `to`."""
END_BACKWARDS = re.compile(r"(?:[,;:! ]\\|\\\\|[.,;\s])*+")
CLOSE = 1e-3
"""Largest relative difference of numbers that are the same but for rounding."""
THIN_SPACE = re.compile(r"(?<=\d)(?:\\[,!; ]|\{,\})(?=\d{3})")
REPLACED = {r"\%": "%", "**": "^", "−": "-", "°": r"^\circ ", r"\$": "", r"\lor": ","}


def expression_of(text: str) -> str:
    r"""LaTeX as math-verify reads it without a loss.

    `\%` it would drop, `1\,000` would be 1·0, `7**2` would be 7, `2e3` would be 2·e·3 and `1 1/2` would be 1·1/2.
    """
    for written, read in REPLACED.items():
        text = text.replace(written, read)
    text = SUPERSCRIPTS.sub(lambda found: f"^{{{_plain(found[0])}}}", text)
    text = FRACTION.sub(_fraction, EN_DASH.sub("-", text))
    text = SCIENTIFIC.sub(r"\1\\times 10^{\2}", text)
    text = MIXED.sub(r"\1\\frac{\2}{\3}", text)
    text = _without_end(THIN_SPACE.sub("", " ".join(text.split()))).lstrip("=: ")
    return text.replace(" ", "") if THOUSANDS.fullmatch(text) else text


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text).replace("−", "-")


def _fraction(found: re.Match[str]) -> str:
    """`½` as LaTeX."""
    above, _, below = unicodedata.normalize("NFKC", found[0]).partition("⁄")
    return rf"\frac{{{above}}}{{{below}}}"


def _without_end(text: str) -> str:
    """Without full stops, commas and LaTeX's spaces behind it."""
    return text[: len(text) - len(END_BACKWARDS.match(text[::-1])[0])]  # type: ignore[index]


def unwrapped(text: str) -> str:
    """A text without what is put around an answer as a whole to be seen."""
    for _ in range(WRAPPERS):
        found = WRAPPED.fullmatch(text)
        if found is None:
            break
        text = next(part for part in found.groups() if part is not None)
    return text


def is_expression(text: str) -> bool:
    """Whether a text is mathematics as a whole, without words of three letters or more."""
    bare = TEXT.sub(" ", text)
    if not bare.strip():  # all of it, such as \text{(B)}
        bare = TEXT.sub(r"\1", text)
    bare = COMMAND.sub(" ", bare)
    return (
        (bool(bare.strip()) or "\\" in text)
        and len(text) <= MAX_EXPRESSION
        and WORD.search(bare) is None
        and MATHEMATICS.fullmatch(bare) is not None
    )


def words_of(text: str) -> str:
    r"""Words as they are compared: out of `\text{…}`, case and white space alike, no full stop."""
    return " ".join(TEXT.sub(r"\1", text).replace("$", "").split()).strip(" .").casefold()


def parsed(text: str, boxed: bool = False) -> tuple[list[Any], str | None]:
    r"""The answer in a text, as math-verify compares it, and as it is written.

    Args:
        text: whose last MAX_CHARACTERS count.
        boxed: look into `\boxed{…}` only.

    Returns:
        Nothing and None if there is no answer.
    """
    text = text[-MAX_CHARACTERS:]
    boxes = [box for box in last_boxes(NEGATED_BOX.sub(" ", text)) if box.strip()]
    if boxes:
        text = ", ".join(boxes)
    elif boxed or not text.strip():
        return [], None
    if not boxes and (stated := STATED.search(text)) is not None:
        text = _stated(stated["answer"]) or text
    text = unwrapped(text)
    if is_expression(written := expression_of(text)):
        if NUMBERS_IN_A_ROW.search(written):  # a product to LaTeX, and 0 as soon as one of them is
            return [], None
        return _as_latex(written) or [written], written
    found = _library(LISTED.sub(_without_alternatives, NEGATED.sub(" ", text)))
    if found:
        return found, str(found[-1])
    if len(text) > MAX_EXPRESSION:
        return [], None
    return [words_of(text)], words_of(text)


def _stated(text: str) -> str | None:
    """What follows `answer is`, if it is an answer as a whole: mathematics, or words without a number."""
    text = unwrapped(text.rstrip("*_. "))
    whole = is_expression(expression_of(text)) or not re.search(r"[\d$\\]", text)
    return text if whole and text else None


def _without_alternatives(found: re.Match[str]) -> str:
    """Nothing, if there is an `or` between numbers: to name several is no answer."""
    return " " if re.search(r"\bor\b", found[0], re.IGNORECASE) else found[0]


def equal(reference: list[Any], answer: list[Any]) -> bool:
    """Whether an answer equals the reference; not symmetric, see math-verify: `x=3` may be answered by `3`."""
    from math_verify import verify

    if not verify(reference, answer, timeout_seconds=None, allow_set_relation_comp=True):
        return False
    return not (_is_small(reference) and _is_small(answer) and _are_far(reference[0], answer[0]))


def _is_small(parsed: list[Any]) -> bool:
    """Whether it is one number below 1 as it is written, without sums and functions, which are 0 but for rounding."""
    from sympy import Add, Expr, Function, Rational

    number = parsed[0] if parsed else None
    return bool(
        isinstance(number, Expr)
        and Rational(1, 100) not in number.args  # percent, which has its own equalities
        and number.is_number
        and number.is_real
        and not number.has(Add, Function)
        and abs(number.evalf()) < 1
    )


def _are_far(first: Any, second: Any) -> bool:
    one, other = first.evalf(), second.evalf()
    return bool(abs(one - other) > CLOSE * max(abs(one), abs(other)))


def _as_latex(expression: str) -> list[Any]:
    """The whole of it or nothing: the last number of what cannot be parsed is not the answer."""
    from math_verify import LatexExtractionConfig, parse

    bare = expression.rstrip("% ")
    percent = expression[len(bare) :].strip()  # behind the dollars, or it would not be found
    found = parse(f"${bare}${percent}", [LatexExtractionConfig()], parsing_timeout=None)
    return _understood(found)


def _library(text: str) -> list[Any]:
    from math_verify import parse

    return _understood(parse(text, parsing_timeout=None))


def _understood(found: list[Any]) -> list[Any]:
    return found if any(not isinstance(each, str) for each in found) else []


def is_enormous(expression: Any) -> bool:
    """Whether a parsed answer holds a power or factorial of more than MAX_DIGITS digits, without working it out."""
    from sympy import Basic, Pow, Rational, factorial, preorder_traversal

    if not isinstance(expression, Basic):
        return False
    for part in preorder_traversal(expression):
        if (
            isinstance(part, factorial) and _size(part.args[0]) > MAX_DIGITS / 5
        ):  # 200,000! has 973,351
            return True
        if isinstance(part, Pow):
            base, exponent = part.args
            exact = not isinstance(base, Rational) or base.q != 1 or abs(base.p) > 1
            if exact and _size(exponent) * math.log10(max(_size(base), 2.0)) > MAX_DIGITS:
                return True
    return False


def _size(number: Any) -> float:
    """Absolute value of a number as the tree says it, infinity beyond floats, 0 for what is no such number."""
    from sympy import Number, Pow, factorial

    try:
        if isinstance(number, Number):
            return abs(float(number))
        parts = [_size(each) for each in number.args]
        if isinstance(number, factorial):
            return math.gamma(parts[0] + 1)
        if isinstance(number, Pow):
            return float(parts[0] ** parts[1])
        return math.prod(parts) if getattr(number, "is_Mul", False) else sum(parts)
    except OverflowError:
        return math.inf


@lru_cache(maxsize=REFERENCES_KEPT)
def reference_of(text: str) -> tuple[Any, ...]:
    """A reference answer, behind `####` as in GSM8K. It is compared with 0 once, so that what hangs hangs here."""
    found, written = parsed(final_answer(text))
    if any(is_enormous(each) for each in found):
        return (written,)
    if found:
        equal(found, _as_latex("0"))
    return tuple(found)


def answer_to(reference: list[Any], text: str, boxed: bool) -> dict[str, Any]:
    """Verdict, the answer as written, and why it is none."""
    try:
        answer, written = parsed(text, boxed)
        if any(is_enormous(each) for each in answer):
            same, why = written in reference, "too large to compare"
            return {"equal": same, "answer": _shown(written), "reason": None if same else why}
        verdict = bool(answer) and equal(reference, answer)
    except Exception as error:
        return {"equal": False, "reason": f"cannot be read: {type(error).__name__}"}
    if not answer:
        return {"equal": False, "reason": "no answer found"}
    return {"equal": verdict, "answer": _shown(written)}


def _shown(written: str | None) -> str:
    return (written or "")[:SHOWN_CHARACTERS].encode("utf-8", "replace").decode()


def serve() -> None:
    """Answers requests, a JSON line each: first about the reference, then about the answer.

    The kernel ends this process (SIGPROF) when either takes more than `limit` seconds of processor time.
    """
    die_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is no answer
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    with contextlib.suppress(ValueError, OSError):  # macOS knows no such limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        import math_verify  # noqa: F401
    except ImportError as error:
        say({"failure": str(error)})
        return
    say({})
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, request["limit"])
        try:
            reference = list(reference_of(request["reference"]))
            failure = None if reference else "no answer found"
        except Exception as error:
            failure = type(error).__name__
        signal.setitimer(signal.ITIMER_PROF, 0)
        say({"failure": failure})
        if failure is None:
            signal.setitimer(signal.ITIMER_PROF, request["limit"])
            verdict = answer_to(reference, request["text"], request["boxed"])
            signal.setitimer(signal.ITIMER_PROF, 0)
            say(verdict)


if __name__ == "__main__":
    serve()
