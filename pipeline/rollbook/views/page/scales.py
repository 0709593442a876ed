"""Where a vertical axis begins and ends: one rule, in Vega-Lite, for the page and for `.dvc/plots/iterations.json`.

Vega fits an axis to its points: a mean length that moves from 2.97 to 2.98 tokens fills the height, and one that does
not move lies on an edge. Here an axis begins at zero where the lowest value is less than half of the highest; elsewhere
it spans at least a PART of the highest, around the values. No axis spans less than `Curve.least`, none goes below zero
where no value does, and those of shares end at 1. Intervals count as values do.

The rule is a layer that nobody sees, and not numbers: it follows the chains that a reader chooses, and the revisions
that `dvc plots diff` puts beside each other.
"""

from __future__ import annotations

import json
from typing import Any

from rollbook.project.curve_words import CURVES

PART = 0.2
"""Of the highest value, that an axis spans at least."""
ROOM = 1.1
"""Times the span of the values, that an axis spans at least: no line lies on an edge but that of a bound."""


def axis_layer(least: str, is_share: str) -> dict[str, Any]:
    """The layer that widens the axis of the others. Points have `value`, and `low` and `high` where they are known.

    Args:
        least: smallest span, as an expression of Vega.
        is_share: whether values are shares, as an expression of Vega.
    """
    return {
        "transform": [
            {"filter": "isValid(datum.value)"},
            _calculated("lower", "isValid(datum.low) ? min(datum.low, datum.value) : datum.value"),
            _calculated(
                "upper", "isValid(datum.high) ? max(datum.high, datum.value) : datum.value"
            ),
            {
                "joinaggregate": [
                    {"op": "min", "field": "lower", "as": "bottom"},
                    {"op": "max", "field": "upper", "as": "top"},
                ]
            },
            _calculated(
                "base",
                "datum.bottom >= 0 && 2 * datum.bottom < datum.top ? 0 : datum.bottom",
            ),
            _calculated(
                "wanted",
                f"max({ROOM} * (datum.top - datum.base), {least}, {PART} * max(abs(datum.top), abs(datum.base)))",
            ),
            _calculated("bounded", f"({is_share}) && datum.bottom >= 0 && datum.top <= 1"),
            _calculated("span", "datum.bounded ? min(1, datum.wanted) : datum.wanted"),
            _calculated("centred", "(datum.base + datum.top - datum.span) / 2"),
            _calculated("raised", "datum.bottom < 0 ? datum.centred : max(0, datum.centred)"),
            _calculated("from", "datum.bounded ? min(datum.raised, 1 - datum.span) : datum.raised"),
            _calculated("to", "datum.from + datum.span"),
        ],
        "mark": {"type": "rule", "opacity": 0, "aria": False, "tooltip": None},
        "encoding": {
            "y": {"field": "from", "type": "quantitative", "scale": {"zero": False}},
            "y2": {"field": "to"},
            "strokeDash": None,
        },
    }


def axis_layer_of_columns() -> dict[str, Any]:
    """The same where the parameter `column` says which column of curves.csv is drawn, as in the template of DVC."""
    least = json.dumps({name: curve.least for name, curve in CURVES.items()})
    shares = json.dumps([name for name, curve in CURVES.items() if curve.is_share])
    return axis_layer(f"({least})[column]", f"indexof({shares}, column) >= 0")


def _calculated(name: str, expression: str) -> dict[str, str]:
    return {"calculate": expression, "as": name}
