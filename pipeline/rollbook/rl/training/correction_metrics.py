"""What rollout correction did, under verl's names and TRL's: statistics of its weights and of its rejections."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.core.ragged import Ragged
from rollbook.rl.training.mismatch import FloatArray, mean, named, row_means

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class Statistic:
    """A number per trained-on token, or one per row that all its tokens share.

    Attributes:
        values: [N] by token or [B] by row.
        by_row: which of the two.
        trained: any list per row over its trained-on tokens; gives the shape.
    """

    values: NDArray[Any]
    by_row: bool
    trained: Ragged

    @cached_property
    def tokens(self) -> NDArray[Any]:
        """[N] each token's value."""
        return self.values[self.trained.row_of] if self.by_row else self.values

    @cached_property
    def rows(self) -> FloatArray:
        """[B] each row's value, by token their mean; 0 without tokens."""
        if self.by_row:
            return np.where(self.trained.lengths > 0, self.values, 0.0)
        return row_means(Ragged(self.values, self.trained.lengths))

    def share(self, flags: BoolArray) -> float:
        """Share of flags that, as `values`, are one per row or per token."""
        return _share(flags) if self.by_row else mean(flags)


def weight_metrics(
    raw: Statistic, bounded: Statistic, low: float | None, high: float
) -> dict[str, float]:
    """Metrics of weights.

    Args:
        raw: ratios of trainer and engine.
        bounded: the weights made of them, before they are normalised.
        low, high: the bounds; without a lower one, 1 / high divides low ratios from the others.
    """
    low = 1 / high if low is None else low
    extremes = raw if raw.by_row else bounded
    tokens, rows = bounded.tokens, bounded.rows
    squares = float((tokens**2).sum())
    verl = {
        "mean": mean(tokens),
        "max": extremes.values.max(),
        "min": extremes.values.min(),
        "std": _spread(tokens),
        "ratio_fraction_high": raw.share(raw.values > high),
        "ratio_fraction_low": raw.share(raw.values < low),
        "eff_sample_size": tokens.sum() ** 2 / (len(tokens) * squares) if squares else 0.0,
        "seq_mean": rows.mean(),
        "seq_std": _sample_std(rows),
        "seq_max": rows.max(),
        "seq_min": rows.min(),
        "seq_max_deviation": np.abs(rows - 1).max(),
        "seq_fraction_high": _share(raw.rows > high),
        "seq_fraction_low": _share(raw.rows < low),
    }
    return {
        "sampling/importance_sampling_ratio/min": float(bounded.values.min()),
        "sampling/importance_sampling_ratio/mean": float(bounded.values.mean()),
        "sampling/importance_sampling_ratio/max": float(bounded.values.max()),
        **named(_prefixed("rollout_is", verl)),
    }


def rejection_metrics(
    name: str, statistic: Statistic, kept: BoolArray, low: float, high: float
) -> dict[str, float]:
    """Metrics of one rejection.

    Args:
        name: of the statistic, as verl spells it.
        statistic: what was compared with the bounds.
        kept: [N] trained-on tokens that passed.
        low, high: the bounds.
    """
    has_tokens = statistic.trained.lengths > 0
    tokens, rows = statistic.tokens, statistic.rows[has_tokens]
    compared = rows if statistic.by_row else tokens
    verl = {
        "mean": mean(tokens),
        "max": compared.max(),
        "min": compared.min(),
        "std": _spread(np.clip(tokens, low, high)),
        "fraction_high": statistic.share(compared > high),
        "fraction_low": statistic.share(compared < low),
        "seq_mean": rows.mean(),
        "seq_std": _sample_std(rows),
        "seq_max": rows.max(),
        "seq_min": rows.min(),
        "seq_max_deviation": np.abs(rows).max(),
        "seq_fraction_high": _share(rows > high),
        "seq_fraction_low": _share(rows < low),
        "masked_fraction": mean(~kept),
        "seq_masked_fraction": _share(_touched(~kept, statistic.trained)[has_tokens]),
    }
    return named(_prefixed(f"rollout_rs_{name}", verl))


def rejected_metrics(kept: BoolArray, trained: Ragged) -> dict[str, float]:
    """Share of trained-on tokens [N] that all rejections together took out, and of rows that lost one."""
    verl = {
        "masked_fraction": mean(~kept),
        "seq_masked_fraction": _share(_touched(~kept, trained)),
    }
    return named(_prefixed("rollout_rs", verl))


def _prefixed(prefix: str, metrics: dict[str, Any]) -> dict[str, Any]:
    return {f"{prefix}_{name}": value for name, value in metrics.items()}


def _touched(flags: BoolArray, trained: Ragged) -> BoolArray:
    """[B] rows with a flagged token."""
    return Ragged(flags, trained.lengths).counts() > 0


def _share(flags: BoolArray) -> float:
    return float(flags.mean())


def _sample_std(rows: FloatArray) -> float:
    return float(rows.std(ddof=1)) if len(rows) > 1 else 0.0


def _spread(tokens: FloatArray) -> float:
    """Deviation as verl computes it, from two means: their EPS shows where all values are equal."""
    if len(tokens) < 2:
        return 0.0
    return math.sqrt(max(mean(tokens**2) - mean(tokens) ** 2, 0.0))
