import time
from decimal import Decimal
from typing import Any

import pytest
from pydantic import ValidationError

from rollbook.components.rewards.base import RewardResult
from rollbook.components.rewards.numeric_answer import (
    lenient_number,
    reference_number,
    strict_number,
)
from tests.unit.components.rewards.rows import reward, row

NOT_ONE_NUMBER = (
    *("", " ", "7.", "7 8", "7=7", "= 7", "$7", "7%", "--7", "7-", "seven", "<think>7</think>7"),
    *("1,23", "1,2345", "12,34,567", "1.2.3", "1_000", "0x10", "1e", "e5"),
    *("nan", "inf", "-inf", "NaN", "Infinity", "٧", "７", "²"),
)


def scored(text: str, reference: str | None, **options: Any) -> RewardResult:
    result = reward("numeric_answer", **options)(row(text, reference))
    assert isinstance(result, RewardResult)
    return result


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7", 7),
        ("  7\n", 7),
        ("-7", -7),
        ("−7", -7),  # a typographic minus
        ("+7", 7),
        ("7.0", 7),
        ("0.10", Decimal("0.1")),
        (".5", Decimal("0.5")),
        ("1,234,567.5", Decimal("1234567.5")),
        ("2e3", 2000),
        ("007", 7),
    ],
)
def test_strict_takes_exactly_one_number(text: str, number: Any) -> None:
    assert strict_number(text) == number


@pytest.mark.parametrize("text", NOT_ONE_NUMBER)
def test_strict_takes_nothing_else(text: str) -> None:
    assert strict_number(text) is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("The answer is 42.", 42),
        ("3+4=7", 7),
        ("10-3", 3),  # a difference, not minus three
        ("it is -3", -3),
        ("x=-3", -3),
        ("$1,234.50 in all", Decimal("1234.5")),
        ("7 apples and 8 pears", 8),
        ("1,2345", 2345),
        ("so...5", 5),
        ("version 1.2.3", 3),
        ("no number", None),
        ("٧", None),
    ],
)
def test_lenient_takes_the_last_number(text: str, number: Any) -> None:
    assert lenient_number(text) == number


def test_equal_as_numbers_not_as_text() -> None:
    assert scored("7", "7.0").value == 1.0
    assert scored("1,000", "1000").value == 1.0
    assert scored("0.1", "0.10").value == 1.0
    assert scored("7", "8").value == 0.0
    # 0.1 + 0.2 in binary is not 0.3; as decimals nothing is rounded
    assert scored("0.30000000000000004", "0.3").value == 0.0


def test_gsm8k_reference_is_the_number_behind_the_mark() -> None:
    assert reference_number("She has 3+4=7 eggs.\n#### 1,007") == 1007
    assert reference_number("#### 1\n#### 2") == 2
    assert reference_number("#### -12") == -12
    assert reference_number("#### 0.25") == Decimal("0.25")
    assert reference_number("#### $5") == 5
    assert reference_number("#### -$1,234.50") == Decimal("-1234.5")
    assert reference_number("$5") is None
    assert scored("1007", "… so 7 and 1000\n#### 1,007").value == 1.0
    assert scored("7", "… so 7 and 1000\n#### 1,007").value == 0.0


@pytest.mark.parametrize("reference", [None, "", "Paris", "42 apples", "1/2", "####"])
def test_does_not_apply_without_a_number_to_compare_with(reference: str | None) -> None:
    assert scored("42", reference) == RewardResult(None)


def test_both_views_are_there_whichever_is_the_reward() -> None:
    strict = scored("The answer is 7", "7")
    assert (strict.value, dict(strict.log)) == (0.0, {"numeric_answer_lenient": 1.0})
    lenient = scored("The answer is 7", "7", mode="lenient")
    assert (lenient.value, dict(lenient.log)) == (1.0, {"numeric_answer_strict": 0.0})
    assert dict(scored("7", "7", label="sum").log) == {"sum_lenient": 1.0}


def test_tolerance_is_a_decimal_distance() -> None:
    # |1.3 − 1.0| = 0.3 exactly; in binary the difference is 0.30000000000000004 and 0.3 is 0.29999999999999999
    assert scored("1.3", "1.0", tolerance=0.3).value == 1.0
    assert scored("1.31", "1.0", tolerance=0.3).value == 0.0
    assert scored("-1", "1", tolerance=1.5).value == 0.0
    assert scored("9" * 5000, "7", tolerance=0.5).value == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "9" * 100_000,
        "9" * 100_000 + "x",
        "1e999999",
        "1e-999999999999999999999",
        "1," * 50_000,
        "1,111" * 20_000,
        "." * 100_000,
        "-" * 100_000,
        " " * 100_000 + "x",
        "1e" * 50_000,
        "٣" * 100_000,
        "\x00\ud800",
    ],
)
@pytest.mark.parametrize("tolerance", [0.0, 0.5])
def test_hostile_text_is_wrong_and_quick(text: str, tolerance: float) -> None:
    started = time.perf_counter()
    for mode in ("strict", "lenient"):
        assert scored(text, "7", mode=mode, tolerance=tolerance).value == 0.0
    assert scored("7", text).value in (0.0, None)  # a hostile reference neither
    assert time.perf_counter() - started < 2


def test_huge_numbers_are_still_compared_exactly() -> None:
    assert scored("9" * 100_000, "9" * 100_000).value == 1.0
    assert scored("9" * 99_999 + "8", "9" * 100_000).value == 0.0
    assert scored("1e9999", "1e9999").value == 1.0


@pytest.mark.parametrize("tolerance", [-1, float("nan"), float("inf")])
def test_tolerance_must_be_a_distance(tolerance: float) -> None:
    with pytest.raises(ValidationError):
        reward("numeric_answer", tolerance=tolerance)
