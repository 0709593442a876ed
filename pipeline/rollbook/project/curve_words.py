"""What the curves of a run are called and mean, and below which span their axes do not go: said once, for every page.

`rollbook.project.report` fills their columns in curves.csv; dvc.yaml, which is read by DVC alone, has the same titles,
and a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

USUAL_CLIPPING = "a large share is usual where a ratio is of a whole answer, as in gspo"
"""Said beside shares of clipped tokens. Within GSPO's 3e-4 to 4e-4 half of them and more were clipped whatever the
learning rate was (`pipeline/rollbook/views/doctor/checks/clip_share.py`)."""


@dataclass(frozen=True)
class Curve:
    """One curve.

    Attributes:
        title: heading.
        told: unit, and what is told of it, in one line.
        least: smallest span of its axis, in the unit of its values: what moves by less has not moved.
        is_share: whether values are shares from 0 to 1, shown in percent.
    """

    title: str
    told: str
    least: float
    is_share: bool = False


EVALUATION = Curve("Evaluation", "share of answers right, with 95 % intervals", 0.1, is_share=True)
"""Of every evaluation set: the mean over samples, and the greedy answers."""
TRAINING: Mapping[str, Curve] = {
    "reward": Curve("Training reward", "mean over rollouts", 0.1),
    "completion_length": Curve("Completion length", "mean number of tokens", 1.0),
    "truncated": Curve(
        "Truncated completions", "share of rollouts that were cut at the limit", 0.1, is_share=True
    ),
    "zero_signal_groups": Curve(
        "Groups without a signal",
        "share of groups whose rollouts all have one reward",
        0.1,
        is_share=True,
    ),
    "entropy": Curve("Policy entropy", "nats per token", 0.1),
    "clip_share": Curve(
        "Clipped tokens",
        f"share that a bound of the loss holds; {USUAL_CLIPPING}, and rollouts are counted",
        0.1,
        is_share=True,
    ),
    "kl": Curve("KL to the reference", "nats per token", 0.001),
    "grad_norm": Curve("Gradient norm", "mean over optimizer steps, before clipping", 0.1),
}
"""By column of curves.csv, in the order of pages."""
EVALUATED = ("mean", "greedy", "pass")
"""Columns of curves.csv that EVALUATION is about."""
CURVES: Mapping[str, Curve] = {**dict.fromkeys(EVALUATED, EVALUATION), **TRAINING}
"""Every column that is drawn."""
