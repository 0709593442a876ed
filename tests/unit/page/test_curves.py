"""Curves as Vega-Lite: whole iterations on the axis, bands where there are intervals, and words for each."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.page.curves import TICKS, Chart, charts, specs
from pipeline.page.run import run_of
from pipeline.params import read_params


def chart(first: int, last: int) -> Chart:
    points = [
        {"step": step, "iteration": "", "series": "x", "value": 1.0, "low": None, "high": None}
        for step in (first, last)
    ]
    return Chart("title", "", points, "y")


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
    found = {each.title: each for each in charts(run_of(read_params()))}
    assert list(found)[:2] == ["Evaluation", "Training reward"]
    assert "KL to the reference" not in found  # never measured
    assert "mean@4 goes from 0.4 at i0000 to 0.6 at i0002" in found["Evaluation"].told
    bands = [(point["low"], point["high"]) for point in found["Evaluation"].points]
    assert bands[0] == (0.36, 0.44)
    reward = found["Training reward"].points[0]
    # Two groups of the same mean: no spread between prompts.
    assert (reward["value"], reward["low"], reward["high"]) == (0.5, 0.5, 0.5)
    assert all(point["low"] is None for point in found["Policy entropy"].points)
