"""Advantages recorded from TRL, verl and scipy."""

from __future__ import annotations

from typing import Any

import pytest

from tests.vectors.adapters_advantages import CATEGORIES, run_case
from tests.vectors.cases import Unsupported, load_cases

LATER = {
    "adv-gdpo",
    "adv-gdpo-zero-std-dim",
    "rloo-basic",
    "rloo-kl-reward",
    "rloo-clip-normalize",
    "rloo-none-row",
    "verl-rloo",
    "verl-rf++-baseline",
    "verl-opo",
    "verl-passk",
    "verl-gpg",
    "verl-remax",
    "verl-rf++",
    "verl-gdpo",
}
"""Estimators that are not built yet."""
DIFFERENT = {"verl-grpo-interleaved-singleton"}
"""Left out on purpose: verl gives a completion without siblings its raw reward."""


def _cases() -> list[Any]:
    return [
        pytest.param(category, case, id=case["id"])
        for category in CATEGORIES
        for case in load_cases(category)
    ]


@pytest.mark.parametrize(("category", "case"), _cases())
def test_recorded_case(category: str, case: dict[str, Any]) -> None:
    if case["id"] in LATER | DIFFERENT:
        with pytest.raises(Unsupported):
            run_case(category, case)
    else:
        assert run_case(category, case) is None


def test_a_wrong_number_is_noticed() -> None:
    case = next(case for case in load_cases("advantages") if case["id"] == "adv-two-groups")
    wrong = {**case, "config": {**case["config"], "std_ddof": 0}}
    assert "8 of 8 numbers differ" in (run_case("advantages", wrong) or "")
    metrics = {**case["expected"]["metrics"], "reward_std": 5.0}
    wrong = {**case, "expected": {**case["expected"], "metrics": metrics}}
    assert "reward_std" in (run_case("advantages", wrong) or "")
