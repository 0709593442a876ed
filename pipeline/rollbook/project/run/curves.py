"""reports/curves.csv: one row per iteration and evaluation set."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollbook.core.errors import ArtifactError

CURVES_FILE = Path("reports/curves.csv")
TRAINING = {
    "reward": "reward",
    "reward_std": "reward_std",
    "zero_signal_groups": "frac_reward_zero_std",
    "completion_length": "completions/mean_length",
    "truncated": "completions/clipped_ratio",
    "entropy": "entropy",
    "kl": "kl",
    "clip_share": "clip_ratio/region_mean",
    "grad_norm": "grad_norm",
}
"""Column of curves.csv: metric of the iteration."""
SCORES = tuple(
    f"{what}{bound}" for what in ("mean", "greedy", "pass") for bound in ("", "_low", "_high")
)
REWARD_BOUNDS = ("reward_low", "reward_high")
"""Columns of the 95 % interval of the mean training reward; curves of older code have none."""
SAMPLES = "samples"
"""Column of the answers to each prompt that a mean is of; curves of older code have none."""
COLUMNS = ("iteration", "step", "recipe", "set", *SCORES, *TRAINING, *REWARD_BOUNDS, SAMPLES)


def read_curves(path: Path) -> list[dict[str, Any]]:
    """The rows of curves.csv, as `rollbook.project.report.curve_rows` made them.

    Raises:
        ArtifactError: if the file is missing or not as it was written.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [_row(each) for each in csv.DictReader(file)]
    except FileNotFoundError:
        raise ArtifactError(f"{path}: does not exist", "run `dvc repro`") from None
    except (OSError, LookupError, TypeError, ValueError):
        raise ArtifactError(
            f"{path}: not as it was written", "`dvc repro report` writes it anew"
        ) from None


def _row(cells: Mapping[str, str]) -> dict[str, Any]:
    row = {name: float(cells[name]) if cells[name] else None for name in (*SCORES, *TRAINING)}
    row |= {name: float(cells[name]) if cells.get(name) else None for name in REWARD_BOUNDS}
    row[SAMPLES] = int(cells[SAMPLES]) if cells.get(SAMPLES) else None
    words = {name: cells[name] for name in ("iteration", "recipe", "set")}
    return {**words, "step": int(cells["step"]), **row}
