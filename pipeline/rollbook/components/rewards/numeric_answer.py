"""numeric_answer: 1 if the completion gives the number of the reference answer, else 0.

    strict   (default) the clean text, surrounding space removed, is exactly one number and nothing else
    lenient  the last number anywhere in the clean text

A number is digits with an optional sign, thousands separators, decimals and exponent (`-1,234.50`, `.5`, `2e3`). A full
stop behind it, a unit, a currency sign or words are not part of a number: strict refuses them, lenient looks past them.
Numbers are compared as decimals, so 7 = 7.0 = 7.00 and 0.1 is exactly 0.1.

The reference answer is a number, or ends in `#### number` as in GSM8K (`#### $5` is 5). Where there is none, the reward
does not apply.
The other view is always logged, as `<label>_lenient` (or `<label>_strict`): a gap between the two is a policy that
knows the answer and does not follow the format.
"""

from __future__ import annotations

import re
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from typing import Annotated, Literal

from pydantic import Field

from rollbook.components.rewards.answers import final_answer
from rollbook.components.rewards.base import Reward, RewardInput, RewardResult

NUMBER_PATTERN = (
    r"(?:(?<![0-9A-Za-z)\]])[+\-−])?"  # in 10-3 the minus is no sign
    r"(?:[0-9]{1,3}(?:,[0-9]{3})++(?![0-9])(?:\.[0-9]++)?|[0-9]++(?:\.[0-9]++)?|(?<![0-9.])\.[0-9]++)"
    r"(?:[eE][+-]?[0-9]++)?"
)
NUMBER = re.compile(NUMBER_PATTERN)
MAX_EXPONENT_DIGITS = 4
"""`1e999999` is an attack or a slip, not an answer; it equals nothing."""
EXACT = Context(prec=50, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])


class NumericAnswer(Reward):
    """Compares numbers.

    Attributes:
        mode: which view is the reward.
        tolerance: largest absolute difference that still counts as equal.
    """

    mode: Literal["strict", "lenient"] = "strict"
    tolerance: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0

    def __call__(self, row: RewardInput) -> RewardResult:
        reference = reference_number(row.reference_answer)
        if reference is None:
            return RewardResult(None)
        views = {
            "strict": self._equal(strict_number(row.text), reference),
            "lenient": self._equal(lenient_number(row.text), reference),
        }
        other = "lenient" if self.mode == "strict" else "strict"
        return RewardResult(views[self.mode], log={f"{self.title}_{other}": views[other]})

    def _equal(self, number: Decimal | None, reference: Decimal) -> float:
        if number is None:
            return 0.0
        if number == reference:
            return 1.0
        # Via the decimal text: a tolerance written 0.1 means 0.1, not the nearest binary number.
        distance = EXACT.abs(EXACT.subtract(number, reference))
        return float(self.tolerance > 0 and distance <= Decimal(repr(self.tolerance)))


def strict_number(text: str) -> Decimal | None:
    """The number that `text` is, or None."""
    found = NUMBER.fullmatch(text.strip())
    return _decimal(found[0]) if found else None


def lenient_number(text: str) -> Decimal | None:
    """The last number in `text`, or None."""
    last = None
    for last in NUMBER.finditer(text):  # noqa: B007
        pass
    return _decimal(last[0]) if last else None


def reference_number(reference_answer: str | None) -> Decimal | None:
    """The number of a reference answer, behind `####` if there is one; None if it is no number."""
    if reference_answer is None:
        return None
    return strict_number(final_answer(reference_answer))


def _decimal(number: str) -> Decimal | None:
    _, _, exponent = number.lower().partition("e")
    if len(exponent.lstrip("+-0")) > MAX_EXPONENT_DIGITS:
        return None
    return Decimal(number.replace(",", "").replace("−", "-"))
