"""Losses, KL and log-probs recorded from TRL and verl, and the program that runs recorded numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.vectors import adapters_losses, adapters_losses_verl
from tests.vectors.__main__ import cases_in, main, run_case
from tests.vectors.cases import FOLDER, FORMAT, Unsupported, load_cases

CATEGORIES = (*adapters_losses.CATEGORIES, *adapters_losses_verl.CATEGORIES)
COVERED = {
    "losses_trl": 26,
    "losses_trl_microbatch": 3,
    "losses_trl_multistep": 2,
    "end_to_end": 1,
    "logps": 3,
    "kl": 1,
    "losses_verl": 9,
}
"""Cases that must run, so that an adapter cannot quietly leave more of them out."""


@pytest.mark.parametrize("category", CATEGORIES)
def test_recorded_cases(category: str) -> None:
    outcomes: dict[str, str | None] = {}
    for case in load_cases(category):
        try:
            outcomes[case["id"]] = run_case(category, case)
        except Unsupported:
            continue
    assert {name: text for name, text in outcomes.items() if text} == {}
    assert len(outcomes) >= COVERED[category]


def _folder_with(tmp_path: Path, case: dict[str, Any]) -> Path:
    content = {"format": FORMAT, "category": "losses_trl", "count": 1, "cases": [case]}
    (tmp_path / "some.json").write_text(json.dumps(content))
    (tmp_path / "other.json").write_text("{}")
    return tmp_path


def _case(name: str) -> dict[str, Any]:
    return next(case for _, case in cases_in(FOLDER) if case["id"] == name)


def test_a_swapped_sign_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = _case("grpo-off-policy")
    flipped = [-value for value in case["inputs"]["advantages"]]
    wrong = {**case, "inputs": {**case["inputs"], "advantages": flipped}}
    assert main([str(_folder_with(tmp_path, wrong))]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("FAILED losses_trl/grpo-off-policy: loss: 1 of 1 numbers differ")
    assert lines[-1] == "0 passed, 1 failed"


def test_a_missing_input_fails_instead_of_ending_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = _case("grpo-off-policy")
    inputs = {name: value for name, value in case["inputs"].items() if name != "advantages"}
    assert main([str(_folder_with(tmp_path, {**case, "inputs": inputs}))]) == 1
    assert "KeyError: 'advantages'" in capsys.readouterr().out


def test_what_is_not_covered_is_counted_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = _case("gspo-wide-kl")
    assert main([str(_folder_with(tmp_path, case))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("1 not covered yet: TRL weighs the KL")
    assert lines[-1] == "0 passed, 0 failed"


def test_an_empty_folder_is_a_failure(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 1
