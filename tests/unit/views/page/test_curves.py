"""Curves as Vega-Lite: whole iterations on the axis, bands where there are intervals, and words for each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollbook.core.ids import PARAMS_FILE
from rollbook.project.curve_words import TRAINING
from rollbook.project.run.run import Run
from rollbook.views.page.curves import TICKS, Chart, charts, numbers, specs
from rollbook.views.page.shown import shown_chain
from tests.unit.views.page.project import make, write_params


def chart(first: int, last: int) -> Chart:
    points = [
        {
            "step": step,
            "iteration": "",
            "chain": "x",
            "series": "x",
            "value": 1.0,
            "low": None,
            "high": None,
        }
        for step in (first, last)
    ]
    return Chart(TRAINING["reward"], "", points, ["x"])


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (0, 3, [0, 1, 2, 3]),
        (1, 1, [1]),
        (1, 12, [2, 4, 6, 8, 10, 12]),
        (0, 200, [*range(0, 201, 50)]),
    ],
)
def test_marks_are_whole_iterations_within_the_axis(
    first: int, last: int, expected: list[int]
) -> None:
    (spec,) = specs([chart(first, last)])
    assert spec["encoding"]["x"]["axis"]["values"] == expected
    assert len(expected) <= TICKS


def test_the_curves_of_a_run(stored_run: Path) -> None:
    found = {each.curve.title: each for each in charts(shown_chain(Run()))}
    assert list(found)[:2] == ["Evaluation", "Training reward"]
    assert "KL to the reference" not in found  # never measured
    assert "mean@4 goes from 0.4 at i0000 to 0.6 at i0002" in found["Evaluation"].told
    assert found["Training reward"].curve.told == "mean over rollouts, with 95 % intervals"
    assert found["Policy entropy"].curve.told == "nats per token"
    bands = [(point["low"], point["high"]) for point in found["Evaluation"].points]
    assert bands[0] == (0.36, 0.44)
    reward = found["Training reward"].points[0]
    # Two groups of the same mean: no spread between prompts.
    assert (reward["value"], reward["low"], reward["high"]) == (0.5, 0.5, 0.5)
    assert all(point["low"] is None for point in found["Policy entropy"].points)


def test_every_chain_is_a_line_of_its_own_colour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make(branch=("b0002", "i0001"))
    run = shown_chain(Run(), "i0002")
    evaluation, reward, *_ = charts(run)
    drawn: dict[tuple[str, str], list[str]] = {}
    for point in evaluation.points:
        drawn.setdefault((point["chain"], point["series"]), []).append(point["iteration"])
    # A branch begins at the policy that it starts from.
    assert drawn == {
        ("i0002, grpo", "mean@4"): ["i0000", "i0001", "i0002"],
        ("i0002, grpo", "greedy"): ["i0000", "i0001", "i0002"],
        ("b0002, other", "mean@4"): ["i0001", "b0002"],
        ("b0002, other", "greedy"): ["i0001", "b0002"],
    }
    assert "mean@4 goes from 0.5 at i0001 to 0.7 at b0002" in evaluation.told
    first, second, *_ = specs([evaluation, reward])
    for spec in (first, second):
        assert spec["encoding"]["color"]["scale"]["domain"] == ["i0002, grpo", "b0002, other"]
    assert "strokeDash" in first["layer"][2]["encoding"]
    assert "strokeDash" not in second["layer"][2]["encoding"]
    assert [row[0] for row in numbers(run).rows] == ["i0001", "i0002", "b0002"]


def test_a_chain_that_has_not_begun_is_not_drawn(own_run: Path) -> None:
    raw = json.loads(PARAMS_FILE.read_text())
    raw["iterations"]["b0002"] = {"previous": "i0001", "recipe": "grpo", "reference": "i0000"}
    write_params(raw)
    assert [branch.name for branch in shown_chain(Run()).branches] == ["i0002, grpo"]
