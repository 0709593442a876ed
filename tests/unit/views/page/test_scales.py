"""Where vertical axes begin and end, as Vega draws them: on the page, and with the template of DVC."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import vl_convert
import yaml

from rollbook.project.curve_words import CURVES
from rollbook.views.page.curves import Chart
from rollbook.views.page.scales import axis_layer_of_columns

ROOT = Path(__file__).parents[4]
TEMPLATE = ROOT / ".dvc" / "plots" / "iterations.json"
AXIS = re.compile(r"Y-axis[^\"]* values from ([-−\d.]+)(%?) to ([-−\d.]+)%?")


def axis(spec: dict[str, Any]) -> tuple[float, float]:
    """Ends of the vertical axis of a chart, shares as shares."""
    drawn = AXIS.search(vl_convert.vegalite_to_svg(json.dumps({**spec, "width": 300})))
    assert drawn
    first, percent, last = (each.replace("−", "-") for each in drawn.groups())
    size = 100 if percent else 1
    return float(first) / size, float(last) / size


def chart(column: str, values: Sequence[float], band: float | None = None) -> dict[str, Any]:
    """A curve by column, with the same interval around every value."""
    points = [
        {
            "step": step,
            "iteration": f"i{step:04}",
            "chain": "x",
            "series": "x",
            "value": value,
            "low": None if band is None else value - band,
            "high": None if band is None else value + band,
        }
        for step, value in enumerate(values, start=1)
    ]
    return Chart(CURVES[column], "", points, ["x"]).spec(160)


@pytest.mark.parametrize(
    ("column", "values", "expected"),
    [
        ("mean", [0.4, 0.9], (0.0, 1.0)),  # from zero: the lowest is less than half of the highest
        ("mean", [0.62, 0.66], (0.57, 0.71)),  # a fifth of the highest, around the values
        ("greedy", [0.996, 1.0], (0.8, 1.0)),  # shares end at 1
        ("truncated", [0.0, 0.0], (0.0, 0.1)),
        ("clip_share", [0.001, 0.002], (0.0, 0.1)),  # what moves by less has not moved
        ("completion_length", [2.977, 2.968], (2.4, 3.5)),
        ("completion_length", [0.0, 0.0], (0.0, 1.0)),
        ("entropy", [0.5, 0.0], (0.0, 0.55)),  # nothing goes below zero where no value does
        ("kl", [1e-9, -1e-9], (-0.0005, 0.0005)),
        ("reward", [-1.0, 1.0], (-1.2, 1.2)),
        ("grad_norm", [1.5, 1.5], (1.3, 1.7)),
    ],
)
def test_an_axis_says_how_much_a_curve_moves(
    column: str, values: Sequence[float], expected: tuple[float, float]
) -> None:
    assert axis(chart(column, values)) == expected


def test_intervals_count_as_values_do() -> None:
    assert axis(chart("mean", [0.6, 0.62]))[0] > 0.5
    assert axis(chart("mean", [0.6, 0.62], band=0.35)) == (0.0, 1.0)


def test_the_horizontal_axis_begins_where_the_curve_does() -> None:
    svg = vl_convert.vegalite_to_svg(json.dumps({**chart("reward", [0.4, 0.5]), "width": 300}))
    assert "X-axis titled 'iteration' for a linear scale with values from 1 to 2" in svg


def test_the_template_of_dvc_has_the_same_rule() -> None:
    assert axis_layer_of_columns() in json.loads(TEMPLATE.read_text())["layer"]


@pytest.mark.parametrize(
    ("column", "values", "expected"),
    [
        ("kl", [0.0, 0.0], (0.0, 0.001)),
        ("completion_length", [2.97, 2.98], (2.4, 3.5)),
        ("greedy", [1.0, 1.0], (0.8, 1.0)),
    ],
)
def test_the_template_knows_the_column(
    column: str, values: Sequence[float], expected: tuple[float, float]
) -> None:
    text = TEMPLATE.read_text().replace("<DVC_METRIC_Y>", column)
    for name in ("WIDTH", "HEIGHT"):
        text = text.replace(f'"<DVC_METRIC_PLOT_{name}>"', "300")
    rows = [
        {"step": step, "iteration": f"i{step:04}", "set": "x", "rev": "workspace", column: value}
        for step, value in enumerate(values)
    ]
    text = text.replace('"<DVC_METRIC_DATA>"', json.dumps(rows)).replace("<DVC_METRIC_X>", "step")
    spec = json.loads(re.sub(r'"<DVC_METRIC_COLOR>"', '{"field": "rev"}', text))
    assert axis(spec) == expected


def test_dvc_gives_curves_the_same_titles() -> None:
    plots = yaml.safe_load((ROOT / "dvc.yaml").read_text())["plots"]
    for plot in plots:
        ((title, settings),) = plot.items()
        (column,) = settings["y"].values()
        assert title.partition(" by iteration")[0] == CURVES[column].title
