"""reports/determinism.md: what replay says of steps, in few numbers, and the tables made of them."""

from typing import Any

from benchmarks.determinism_report import (
    Finding,
    WholeRun,
    condition_table,
    finding,
    in_short,
    largest_by_output,
    report,
)
from rollbook.project.replay.verdict import Difference, Outcome

POLICY = "artifacts/policies/i0001"
ROLLOUTS = "artifacts/rollouts/i0001.parquet"


def _said(step: str, problem: str = "", **outputs: Difference) -> dict[str, Any]:
    return {
        "step": step,
        "problem": problem,
        "outputs": [
            {"path": path, "comparison": {**vars(each), "outcome": str(each.outcome)}}
            for path, each in outputs.items()
        ],
        "environment": [{"what": "package numpy", "then": "2", "now": "3"}],
    }


def _weights(apart: float) -> Difference:
    facts = {"largest": {"difference": apart / 2, "ulp": 7}, "share": 0.25}
    return Difference(Outcome.DIFFERENT, "…", {"model.safetensors": facts}, apart)


UPDATE = finding(
    "as on a processor of old",
    _said(
        "update_policy@i0001",
        **{
            POLICY: _weights(1e-4),
            "artifacts/metrics/update_policy/i0001.json": Difference(Outcome.IDENTICAL),
        },
    ),
)
TOKENS = finding(
    "two threads",
    _said(
        "generate_rollouts@i0001",
        **{
            ROLLOUTS: Difference(
                Outcome.DIFFERENT, "…", {"cells": {"completion_token_ids": 3, "text": 2}}
            ),
            "artifacts/metrics/generate_rollouts/i0001.json": Difference(
                Outcome.DIFFERENT, "…", {}, 2e-3
            ),
        },
    ),
)
WRITTEN = finding(
    "package x",
    _said("prepare_prompts@i0001", a=Difference(Outcome.SAME_CONTENT, "another writer")),
)
FAILED = finding("package x", _said("score_rollouts@i0001", "no such module"))
SAME = Finding("two threads", "score_rollouts@i0001", "identical")
FOUND = [UPDATE, TOKENS, WRITTEN, FAILED, SAME]


def test_a_step_in_few_numbers() -> None:
    assert UPDATE.apart == {POLICY: 1e-4}  # the identical output is no evidence
    assert (UPDATE.difference, UPDATE.ulp, UPDATE.share) == (5e-5, 7, 0.25)
    assert UPDATE.environment == ["package numpy 2 → 3"]
    assert (TOKENS.tokens, TOKENS.apart[ROLLOUTS], TOKENS.difference) == (3, None, None)
    assert (WRITTEN.outcome, WRITTEN.reasons) == ("same content", ["another writer"])
    assert (FAILED.outcome, FAILED.reasons) == ("not replayed", ["no such module"])


def test_rows_count_steps_by_how_they_came_out() -> None:
    lines = in_short(FOUND).splitlines()[2:]
    assert lines == [
        "| as on a processor of old | 0 of 1 | – | 1 | 1.0e-04 | – | – |",
        "| two threads | 1 of 2 | – | 1 | 2.0e-03 | 3 | – |",
        "| package x | 0 of 2 | 1 | – | – | – | 1 |",
    ]


def test_a_step_that_was_not_run_has_an_empty_cell() -> None:
    lines = condition_table(FOUND).splitlines()
    assert lines[0].startswith("| condition | update_policy i0001 | generate_rollouts i0001 |")
    assert lines[2] == "| as on a processor of old | 1.0e-04 |  |  |  |"
    assert lines[3] == "| two threads |  | 3 rows with other tokens, 2.0e-03 |  | identical |"
    assert lines[4] == "| package x |  |  | same content | could not run |"


def test_the_tolerance_is_held_against_the_largest_of_each_output() -> None:
    less = finding("c", _said("update_policy@i0001", **{POLICY: _weights(1e-6)}))
    assert largest_by_output([less, *FOUND]) == {
        ("update_policy", "policies"): (1e-4, "as on a processor of old"),
        ("generate_rollouts", "metrics"): (2e-3, "two threads"),
    }


def test_the_page_has_what_was_measured_and_no_more() -> None:
    same = WholeRun("again", 24, 24, [0, 0], 512, None, [0.5, 0.5])
    other = WholeRun("two threads", 3, 24, [0, 9], 512, 0.25, [0.5, 0.625])
    page = report(
        [TOKENS, SAME, UPDATE],
        [same, other],
        {"ISA=old": ["sum"], "MODE=x": []},
        "today, here",
    )
    assert "| again | 24 of 24 | 0, 0 of 512 | identical | 0.500 → 0.500 |" in page
    assert "| two threads | 3 of 24 | 0, 9 of 512 | 2.5e-01 | 0.500 → 0.625 |" in page
    assert "| `ISA=old` | sum |" in page and "| `MODE=x` | nothing |" in page
    assert "update_policy: policies | 1.0e-04 | 1.0e-04 | as on a processor of old |" in page
    assert "generate_rollouts: metrics | – | 2.0e-03 | two threads |" in page
    assert "`--packages` was not asked for" in page
    assert "today, here" in page
