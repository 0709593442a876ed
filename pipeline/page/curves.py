"""Curves by iteration as Vega-Lite, with a band where there is an interval. The browser puts in the page's colours."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from pipeline.evaluation import interval, prompt_means
from pipeline.page.overview import figure, mean_name
from pipeline.page.run import Run
from pipeline.report import DIGITS
from pipeline.showing.sections import Grid
from pipeline.showing.tables import stored
from pipeline.visible import visible

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
"""A name that tells the version; nothing is fetched."""
HEIGHTS = (300, 160)
"""Of the first chart and of the others, px."""
TRAINING = {
    "reward": ("Training reward", "mean reward"),
    "completion_length": ("Completion length", "tokens"),
    "truncated": ("Truncated completions", "share of rollouts"),
    "zero_signal_groups": ("Groups without a signal", "share of groups"),
    "entropy": ("Policy entropy", "nats per token"),
    "clip_share": ("Clipped tokens", "share of tokens"),
    "kl": ("KL to the reference", "nats per token"),
    "grad_norm": ("Gradient norm", "mean before clipping"),
}
"""Column of the curves: title, and what its axis says."""
TICKS = 10
"""Marks of the horizontal axis, at most."""
SHARES = ("truncated", "zero_signal_groups", "clip_share")
SCORED = ("prompt_id", "reward")

Point = Mapping[str, Any]
"""One point: step, iteration, series, value, and low and high of its interval or None."""


@dataclass(frozen=True)
class Chart:
    """One chart.

    Attributes:
        title: heading.
        told: what it shows, for those who do not see it.
        points: of all series.
        y_title: of the vertical axis.
        percent: whether values are shares, shown in percent.
    """

    title: str
    told: str
    points: Sequence[Point]
    y_title: str
    percent: bool = False

    def spec(self, height: int) -> dict[str, Any]:
        """As Vega-Lite, as wide as its place."""
        several = len({point["series"] for point in self.points}) > 1
        shown = ".1%" if self.percent else ".4~g"
        y = {"type": "quantitative", "title": self.y_title, "scale": {"zero": False}}
        value = {**y, "field": "value", "axis": {"format": "~%" if self.percent else "~g"}}
        tooltip = [
            {"field": "iteration", "type": "nominal"},
            *([{"field": "series", "type": "nominal", "title": "what"}] if several else []),
            {"field": "value", "type": "quantitative", "format": shown},
        ]
        bounds = [
            {"field": bound, "type": "quantitative", "format": shown, "title": f"95 % {bound}"}
            for bound in ("low", "high")
        ]
        known = "isValid(datum.low) && isValid(datum.high)"
        has_band = any(point["low"] is not None for point in self.points)
        line = {"mark": {"type": "line", "strokeWidth": 2}, "encoding": {"y": value}}
        dots = {
            "mark": {"type": "point", "filled": True, "size": 45, "opacity": 1},
            "encoding": {"y": value, "tooltip": [*tooltip, *(bounds if has_band else [])]},
        }
        band = {
            "transform": [{"filter": known}],
            "mark": {"type": "area", "opacity": 0.16},
            "encoding": {"y": {**y, "field": "low"}, "y2": {"field": "high"}},
        }
        color = {"field": "series", "type": "nominal", "title": None, "sort": None}
        return {
            "$schema": SCHEMA,
            "width": "container",
            "height": height,
            "autosize": {"type": "fit", "contains": "padding"},
            "data": {"values": list(self.points)},
            "encoding": {
                "x": {
                    "field": "step",
                    "type": "quantitative",
                    "title": "iteration",
                    "axis": {"values": self._ticks(), "format": "d", "grid": False},
                    "scale": {"nice": False},
                },
                "color": {
                    **color,
                    "legend": {"orient": "top", "symbolType": "stroke"} if several else None,
                },
            },
            "layer": [*([band] if has_band else []), line, dots],
        }

    def _ticks(self) -> list[int]:
        """Whole iterations, TICKS at most: an axis left alone sets marks between them."""
        steps = [int(point["step"]) for point in self.points]
        first, last = min(steps), max(steps)
        apart = next(size for size in _nice() if (last - first) // size < TICKS)
        return list(range(-(-first // apart) * apart, last + 1, apart))


def charts(run: Run) -> list[Chart]:
    """All curves that have a point: the evaluation first."""
    found = [_evaluation(run), *(_training(run, column) for column in TRAINING)]
    return [chart for chart in found if chart.points]


def specs(found: Sequence[Chart]) -> list[dict[str, Any]]:
    """The charts as Vega-Lite, the first one higher."""
    return [chart.spec(HEIGHTS[min(place, 1)]) for place, chart in enumerate(found)]


def _evaluation(run: Run) -> Chart:
    several = len(run.sets) > 1
    points = []
    for name in run.sets:
        of = f"{visible(name)} " if several else ""
        series = {"mean": f"{of}{mean_name(run)}", "greedy": f"{of}greedy"}
        for column, label in series.items():
            points += [
                _point(row, label, row[column], row[f"{column}_low"], row[f"{column}_high"])
                for row in run.rows
                if row["set"] == name and row[column] is not None
            ]
    told = "; ".join(
        _told([each for each in points if each["series"] == label]) for label in _series(points)
    )
    return Chart("Evaluation", told, points, "share of answers right, 95 %", percent=True)


def _training(run: Run, column: str) -> Chart:
    title, y_title = TRAINING[column]
    first_of = {row["iteration"]: row for row in reversed(run.rows)}
    rows = [row for row in reversed(first_of.values()) if row[column] is not None]
    points = []
    for row in rows:
        low, high = _reward_interval(row["iteration"]) if column == "reward" else (None, None)
        points.append(_point(row, title, row[column], low, high))
    if any(point["low"] is not None for point in points):
        y_title += ", 95 %"
    return Chart(title, _told(points), points, y_title, percent=column in SHARES)


def _reward_interval(key: str) -> tuple[float | None, float | None]:
    """Of the mean reward of an iteration, clustered by prompt; unknown where its scores are not on disk."""
    scores, rollouts = stored("scores", key), stored("rollouts", key)
    if scores is None or rollouts is None:
        return None, None
    table = scores.all(SCORED)
    if table.num_rows == rollouts.rows:
        table = table.filter(pc.invert(rollouts.column("greedy")))
    found = interval(prompt_means(table, "reward"))
    if not math.isfinite(found.low):
        return None, None
    return round(found.low, DIGITS), round(found.high, DIGITS)


def _point(
    row: Mapping[str, Any], series: str, value: float, low: float | None, high: float | None
) -> Point:
    return {
        "step": row["step"],
        "iteration": row["iteration"],
        "series": series,
        "value": value,
        "low": low,
        "high": high,
    }


def _series(points: Sequence[Point]) -> list[str]:
    return list(dict.fromkeys(str(point["series"]) for point in points))


def _told(points: Sequence[Point]) -> str:
    if not points:
        return ""
    first, last = points[0], points[-1]
    return (
        f"{first['series']} goes from {first['value']:.4g} at {first['iteration']} to {last['value']:.4g} "
        f"at {last['iteration']}"
    )


def numbers(run: Run) -> Grid:
    """The training curves as a table."""
    names = [name for name in TRAINING if any(row[name] is not None for row in run.rows)]
    rows = {row["iteration"]: row for row in reversed(run.rows) if row["step"]}
    head = ["iteration", *(TRAINING[name][0].lower() for name in names)]
    cells = [
        [key, *(figure(row[name], 4) for name in names)] for key, row in reversed(rows.items())
    ]
    return Grid(head, cells, head[1:])


def _nice() -> Iterator[int]:
    """1, 2, 5, 10, 20, 50, …"""
    yield from (each * 10**power for power in itertools.count() for each in (1, 2, 5))
