"""What a step ran on, what differs now, by which tolerance it is judged, and exit codes."""

from pathlib import Path
from typing import Any

import pytest

from rollbook.project.replay.environment import (
    INEXACT_NUMBERS,
    INEXACT_WEIGHTS,
    environment_changes,
    recorded_runtime,
    tolerance_of,
)
from rollbook.project.replay.judging import limit_of
from rollbook.project.replay.verdict import Outcome, Tolerance, exit_code, worst
from rollbook.tables.run_info import RunInfo, run_info_in


def _info(
    threads: int | None = 2,
    gpus: tuple[str, ...] = (),
    cpu: str = "A",
    device: str = "auto",
    **packages: str,
) -> RunInfo:
    content: dict[str, Any] = {
        "runtime": {"device": device, "threads": "auto", "threads_used": threads},
        "environment": {
            "cpu": cpu,
            "cpu_count": 2,
            "python": "3.11.7",
            "platform": "Linux",
            "gpus": list(gpus),
            "packages": packages,
            "host": f"host of {cpu}",
        },
    }
    return run_info_in(content, Path("run_info.json"))


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        (_info(), {"device": "cpu", "threads": 2}),
        (_info(gpus=("H200",)), {"device": "cuda", "threads": 2}),
        (_info(gpus=("H200",), device="cuda:1"), {"device": "cuda:1", "threads": 2}),
        (_info(threads=None), {"device": "auto", "threads": "auto"}),  # torch was not used
    ],
)
def test_auto_is_what_it_was_then(info: RunInfo, expected: dict[str, Any]) -> None:
    assert recorded_runtime(info) == expected
    assert "threads_used" in info.runtime


def test_differences_name_what_was_and_what_is() -> None:
    then = _info(torch="2.13.0", polars="1.0")
    now = _info(threads=4, gpus=("H200",), cpu="B", torch="2.14.0", numpy="2.3")
    assert [(each.what, each.then, each.now) for each in environment_changes(then, now)] == [
        ("package numpy", "not there", "2.3"),
        ("package polars", "1.0", "not there"),
        ("package torch", "2.13.0", "2.14.0"),
        ("cpu", "A", "B"),
        ("gpus", "none", "H200"),
        ("threads", "2", "4"),
    ]
    assert list(environment_changes(then, then)) == []
    without = _info(threads=None, torch="2.13.0", polars="1.0")  # as a step alone, not forked
    assert (
        list(environment_changes(then, without)) == list(environment_changes(without, then)) == []
    )


def test_exactness_is_asked_for_where_it_can_be_promised() -> None:
    assert tolerance_of(_info(), _info(torch="9"), None) == Tolerance()
    limits = (INEXACT_NUMBERS, INEXACT_WEIGHTS)
    gpu = tolerance_of(_info(gpus=("H200",)), _info(), None)
    assert gpu == Tolerance(*limits, "computed on a GPU")
    other = tolerance_of(_info(), _info(cpu="B"), None)
    assert other == Tolerance(*limits, "computed on another processor")
    assert tolerance_of(_info(), _info(cpu="B"), 0.0) == Tolerance()
    assert tolerance_of(_info(), _info(), 0.5) == Tolerance(0.5, 0.5, "asked for")


def test_weights_have_a_limit_of_their_own() -> None:
    tolerance = Tolerance(1.0, 2.0, "asked for")
    kinds = {"policies": 2.0, "optimizers": 2.0, "rollouts": 1.0, "updates": 1.0, "numbers": 1.0}
    assert {kind: limit_of(kind, tolerance) for kind in kinds} == kinds


@pytest.mark.parametrize(
    ("outcomes", "worst_one", "code"),
    [
        ([], Outcome.IDENTICAL, 0),
        ([Outcome.IDENTICAL, Outcome.SAME_CONTENT], Outcome.SAME_CONTENT, 0),
        ([Outcome.WITHIN_TOLERANCE, Outcome.SAME_CONTENT], Outcome.WITHIN_TOLERANCE, 0),
        ([Outcome.DIFFERENT, Outcome.IDENTICAL], Outcome.DIFFERENT, 1),
        ([Outcome.NOT_REPLAYED, Outcome.IDENTICAL], Outcome.NOT_REPLAYED, 2),
        ([Outcome.DIFFERENT, Outcome.NOT_REPLAYED], Outcome.DIFFERENT, 1),
    ],
)
def test_exit_codes(outcomes: list[Outcome], worst_one: Outcome, code: int) -> None:
    assert worst(outcomes) is worst_one
    assert exit_code(outcomes) == code
