"""Sums such as `17+5=` with their results: a seeded task that a very small model can learn in minutes.

Every problem belongs to one side, training or evaluation, decided by a hash of `data.split_seed` and its two
numbers in either order: `7+5=` and `5+7=` stand on the same side, whatever the range, operators and sizes asked for.
"""

from __future__ import annotations

import operator
import string
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from rollbook.components.sources.base import Role, Source
from rollbook.core.errors import DataError
from rollbook.core.ids import seed_of

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
MOST_PROBLEMS = 4_000_000
SEED_RANGE = 2**63
PLACES = ("left", "sign", "right")


class Arithmetic(Source):
    """All problems `a+b=` with minimum ≤ a, b < below, in seeded order."""

    minimum: NonNegativeInt = 0
    below: PositiveInt = 30
    operators: list[Literal["+", "-", "*"]] = Field(default=["+"], min_length=1)
    prompts: PositiveInt | None = None
    """How many prompts to take. Default: all of that side."""
    evaluation_share: Annotated[float, Field(gt=0, lt=1)] = 0.4
    """Share of the problems kept for evaluation. Give both sides the same."""
    template: str = "{left}{sign}{right}="
    """How a problem is asked; braces that mean themselves are doubled."""

    @model_validator(mode="after")
    def _is_finite_work(self) -> Arithmetic:
        if self.below <= self.minimum:
            raise ValueError(f"`below` ({self.below}) must be above `minimum` ({self.minimum})")
        if (count := (self.below - self.minimum) ** 2 * len(self.operators)) > MOST_PROBLEMS:
            raise ValueError(
                f"{count:,} problems; at most {MOST_PROBLEMS:,} are made: lower `below`"
            )
        return self

    @model_validator(mode="after")
    def _asks_for_the_problem(self) -> Arithmetic:
        try:
            parts = list(string.Formatter().parse(self.template))
        except ValueError as error:
            raise ValueError(f"template {self.template!r}: {error}") from None
        names = [name for _, name, _, _ in parts if name is not None]
        plain = all(not form and not conversion for _, _, form, conversion in parts)
        if not plain or set(names) - set(PLACES) or {"left", "right"} - set(names):
            raise ValueError(
                f"template {self.template!r} must hold {{left}} and {{right}}, may hold {{sign}}, and nothing else "
                "in braces"
            )
        return self

    def records(self, role: Role, split_seed: int) -> Iterator[dict[str, Any]]:
        numbers = range(self.minimum, self.below)
        problems = [
            (left, sign, right)
            for left in numbers
            for right in numbers
            if self._is_on(role, left, right, split_seed)
            for sign in dict.fromkeys(self.operators)
        ]
        problems.sort(key=lambda problem: seed_of("order", split_seed, *problem))
        if self.prompts is not None and self.prompts > len(problems):
            raise DataError(
                f"arithmetic: {self.prompts} prompts are wanted for {role}, its side has {len(problems)}",
                f"set `prompts` to at most {len(problems)}, raise `below`, or change `evaluation_share` on both sides",
            )
        for left, sign, right in problems[: self.prompts]:
            content = self.template.format(left=left, sign=sign, right=right)
            yield {
                "messages": [{"role": "user", "content": content}],
                "reference_answer": str(OPERATIONS[sign](left, right)),
                "operands": [left, right],
            }

    def _is_on(self, role: Role, left: int, right: int, split_seed: int) -> bool:
        mark = seed_of("split", split_seed, min(left, right), max(left, right))
        return (mark < self.evaluation_share * SEED_RANGE) == (role == "evaluation")
