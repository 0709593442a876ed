"""What rewards log beside their number, made plain: values that go from process to process and into a column."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

NUMBERS, TRUTHS, TEXTS = "numbers", "truth values", "texts"


@dataclass(frozen=True)
class Logged:
    """Values of one name.

    Attributes:
        kinds: what they are: numbers, truth values, texts, or something that cannot be in a column, such as `a list`.
        values: by place; empty if they cannot be in one column.
    """

    kinds: frozenset[str]
    values: Mapping[int, Any]


def logged_of(values: Mapping[int, Any]) -> Logged:
    """Numbers become floats (not finite ones None), truth values among numbers too."""
    plain = {place: _plain(value) for place, value in values.items()}
    kinds = frozenset(_kind(value) for value in plain.values() if value is not None)
    if not is_column(kinds):
        return Logged(kinds, {})
    make: Callable[[Any], Any] = _finite
    if NUMBERS not in kinds:
        make = storable if TEXTS in kinds else bool
    return Logged(
        kinds,
        {place: None if value is None else make(value) for place, value in plain.items()},
    )


def storable(text: str) -> str:
    """A text as a table can hold it: of subclasses only what they are, half a surrogate escaped."""
    return str.__str__(text).encode("utf-8", "backslashreplace").decode()


def is_column(kinds: Iterable[str]) -> bool:
    """Whether values of these kinds can be one column."""
    return set(kinds) <= {NUMBERS, TRUTHS} or set(kinds) == {TEXTS}


def _plain(value: Any) -> Any:
    """NumPy scalars and 0-dimensional tensors as Python's own."""
    try:
        return value.item() if hasattr(value, "item") else value
    except (TypeError, ValueError, RuntimeError):  # more than one value
        return value


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return TRUTHS
    if isinstance(value, (int, float)):
        return NUMBERS
    return TEXTS if isinstance(value, str) else f"a {type(value).__name__}"


def _finite(value: float) -> float | None:
    try:
        number = float(value)
    except OverflowError:  # an int beyond the range of float
        return None
    return number if math.isfinite(number) else None
