"""Curves by iteration as Vega-Lite, with a band where there is an interval. The browser puts in the page's colours."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rollbook.core.text import visible
from rollbook.project.curve_words import EVALUATION, TRAINING, Curve
from rollbook.project.run.curves import REWARD_BOUNDS
from rollbook.views.page.overview import at_samples, figure
from rollbook.views.page.scales import axis_layer
from rollbook.views.page.shown import Branch, Row, ShownChain
from rollbook.views.show.sections import Grid

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
"""A name that tells the version; nothing is fetched."""
HEIGHTS = (300, 160)
"""Of the first chart and of the others, px."""
TICKS = 10
"""Marks of the horizontal axis, at most."""
AXIS_NUMBER, AXIS_PERCENT = ".6~g", ".3~%"
"""How the vertical axis writes values. Without a precision Vega takes one from the distance of the marks; where all
points are alike there is none, and 1.5 is written as 2."""
LEGEND = {"orient": "top", "symbolType": "stroke"}
DATA = "points"
"""What the data of every chart is called: the page puts those of some chains in its place."""

Point = Mapping[str, Any]
"""One point: step, iteration, chain, series, value, and low and high of its interval or None."""


@dataclass(frozen=True)
class Chart:
    """One chart.

    Attributes:
        curve: what it is of.
        told: what it shows, for those who do not see it.
        points: of all series.
        chains: names of all chains, whether they have a point here or not: each has a colour of its own.
    """

    curve: Curve
    told: str
    points: Sequence[Point]
    chains: Sequence[str]

    def spec(self, height: int) -> dict[str, Any]:
        """As Vega-Lite, as wide as its place."""
        several = len({point["series"] for point in self.points}) > 1
        is_share = self.curve.is_share
        shown = ".1%" if is_share else ".4~g"
        y = {"type": "quantitative", "title": None, "scale": {"zero": False}}
        value = {
            **y,
            "field": "value",
            "axis": {"format": AXIS_PERCENT if is_share else AXIS_NUMBER},
        }
        tooltip = [
            {"field": "iteration", "type": "nominal"},
            *([{"field": "chain", "type": "nominal"}] if len(self.chains) > 1 else []),
            *([{"field": "series", "type": "nominal", "title": "what"}] if several else []),
            {"field": "value", "type": "quantitative", "format": shown},
        ]
        bounds = [
            {"field": bound, "type": "quantitative", "format": shown, "title": f"95 % {bound}"}
            for bound in ("low", "high")
        ]
        known = "isValid(datum.low) && isValid(datum.high)"
        has_band = any(point["low"] is not None for point in self.points)
        line = {
            "mark": {"type": "line", "strokeWidth": 2},
            "encoding": {"y": value, **self._dashes(several)},
        }
        dots = {
            "mark": {"type": "point", "filled": True, "size": 45, "opacity": 1},
            "encoding": {"y": value, "tooltip": [*tooltip, *(bounds if has_band else [])]},
        }
        band = {
            "transform": [{"filter": known}],
            "mark": {"type": "area", "opacity": 0.16},
            "encoding": {"y": {**y, "field": "low"}, "y2": {"field": "high"}},
        }
        axis = axis_layer(str(self.curve.least), str(is_share).lower())
        return {
            "$schema": SCHEMA,
            "width": "container",
            "height": height,
            "autosize": {"type": "fit", "contains": "padding"},
            "data": {"name": DATA, "values": list(self.points)},
            "encoding": {
                "x": {
                    "field": "step",
                    "type": "quantitative",
                    "title": "iteration",
                    "axis": {"values": self._ticks(), "format": "d", "grid": False},
                    "scale": {"nice": False, "zero": False},
                },
                "color": self._colors(several),
                "detail": {"field": "series", "type": "nominal"},
            },
            "layer": [axis, *([band] if has_band else []), line, dots],
        }

    def _colors(self, several: bool) -> dict[str, Any]:
        """A colour for each series; of several chains for each chain, which the page has a legend of."""
        if len(self.chains) > 1:
            scale = {"domain": list(self.chains)}
            return {"field": "chain", "type": "nominal", "scale": scale, "legend": None}
        return {
            "field": "series",
            "type": "nominal",
            "title": None,
            "sort": None,
            "legend": LEGEND if several else None,
        }

    def _dashes(self, several: bool) -> dict[str, Any]:
        """Of several series of several chains, what tells the series apart."""
        if not several or len(self.chains) == 1:
            return {}
        dashes = {"field": "series", "type": "nominal", "title": None, "sort": None}
        return {"strokeDash": {**dashes, "legend": LEGEND}}

    def _ticks(self) -> list[int]:
        """Whole iterations, TICKS at most: an axis left alone sets marks between them."""
        steps = [int(point["step"]) for point in self.points]
        first, last = min(steps), max(steps)
        apart = next(size for size in _nice() if (last - first) // size < TICKS)
        return list(range(-(-first // apart) * apart, last + 1, apart))


def charts(shown: ShownChain) -> list[Chart]:
    """All curves that have a point: the evaluation first."""
    found = [_evaluation(shown), *(_training(shown, column) for column in TRAINING)]
    return [chart for chart in found if chart.points]


def specs(found: Sequence[Chart]) -> list[dict[str, Any]]:
    """The charts as Vega-Lite, the first one higher."""
    return [chart.spec(HEIGHTS[min(place, 1)]) for place, chart in enumerate(found)]


def _evaluation(shown: ShownChain) -> Chart:
    several = len(shown.sets) > 1
    points = []
    for branch in shown.branches:
        for name in shown.sets:
            of = f"{visible(name)} " if several else ""
            series = {"mean": f"{of}{at_samples('mean', shown)}", "greedy": f"{of}greedy"}
            for column, label in series.items():
                points += [
                    _point(branch, row, label, column, row[f"{column}_low"], row[f"{column}_high"])
                    for row in branch.rows
                    if row["set"] == name and row[column] is not None
                ]
    return _chart(shown, EVALUATION, points)


def _training(shown: ShownChain, column: str) -> Chart:
    curve = TRAINING[column]
    points = []
    for branch in shown.branches:
        first_of = {row["iteration"]: row for row in reversed(branch.rows)}
        for row in reversed(first_of.values()):
            if row[column] is not None:
                low, high = map(row.get, REWARD_BOUNDS) if column == "reward" else (None, None)
                points.append(_point(branch, row, curve.title, column, low, high))
    if any(point["low"] is not None for point in points):
        curve = replace(curve, told=f"{curve.told}, with 95 % intervals")
    return _chart(shown, curve, points)


def _chart(shown: ShownChain, curve: Curve, points: Sequence[Point]) -> Chart:
    names = [visible(branch.name) for branch in shown.branches]
    lines = dict.fromkeys((point["chain"], point["series"]) for point in points)
    told = "; ".join(
        _told([each for each in points if (each["chain"], each["series"]) == line])
        for line in lines
    )
    return Chart(curve, told, points, names)


def _point(
    branch: Branch, row: Row, series: str, column: str, low: float | None, high: float | None
) -> Point:
    return {
        "step": row["step"],
        "iteration": row["iteration"],
        "chain": visible(branch.name),
        "series": series,
        "value": row[column],
        "low": low,
        "high": high,
    }


def _told(points: Sequence[Point]) -> str:
    first, last = points[0], points[-1]
    return (
        f"{first['series']} goes from {first['value']:.4g} at {first['iteration']} to {last['value']:.4g} "
        f"at {last['iteration']}"
    )


def numbers(shown: ShownChain) -> Grid:
    """The training curves of all chains as a table."""
    every = [
        row for branch in shown.branches for row in branch.rows if row["iteration"] in branch.keys
    ]
    names = [name for name in TRAINING if any(row[name] is not None for row in every)]
    rows = {row["iteration"]: row for row in reversed(every)}
    head = ["iteration", *(TRAINING[name].title.lower() for name in names)]
    cells = [
        [key, *(figure(row[name], 4) for name in names)] for key, row in reversed(rows.items())
    ]
    return Grid(head, cells, head[1:])


def _nice() -> Iterator[int]:
    """1, 2, 5, 10, 20, 50, …"""
    yield from (each * 10**power for power in itertools.count() for each in (1, 2, 5))
