"""From scored evaluation completions to numbers: means with intervals that know that prompts, not samples, are drawn.

Samples of one prompt are alike, so intervals are clustered by prompt: 95 %, normal, over the means of prompts
(Miller 2024, "Adding error bars to evals", arXiv:2411.00640, eq. 4 and, for pairs, §4.2).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Floats = NDArray[np.float64]

Z95 = 1.959963984540054
"""97.5 % quantile of the standard normal."""
RIGHT_FROM = 0.5
"""An answer is right if its reward is at least this, a prompt if the mean reward of its sampled answers is. Rewards of
0 and 1 leave no doubt; `pass_at`, which is only taken of those, counts ones."""


@dataclass(frozen=True)
class Estimate:
    """A mean and its 95 % interval; the interval is NaN with fewer than two prompts."""

    mean: float
    low: float
    high: float

    def named(self, name: str) -> dict[str, float]:
        return {name: self.mean, f"{name}_low": self.low, f"{name}_high": self.high}

    def text(self, form: str, share: bool = False) -> str:
        """Such as `0.41 [0.38, 0.44]`; the interval is left out where it is not known.

        Args:
            form: format of each number, such as `.3g`.
            share: no bound is below 0 or above 1, though the normal distribution knows no end.
        """
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            return format(self.mean, form)
        low, high = (max(self.low, 0.0), min(self.high, 1.0)) if share else (self.low, self.high)
        return f"{self.mean:{form}} [{low:{form}}, {high:{form}}]"


def evaluation_metrics(table: pa.Table, samples: int, label: str) -> dict[str, float]:
    """All numbers of an evaluation, by set.

    Args:
        table: an evaluations table, all sets.
        samples: completions per prompt, the greedy one not counted.
        label: the scorer's; numbers it logs as `<label>_<view>` are averaged too, as `mean_at_4_<view>`.
    """
    metrics: dict[str, float] = {}
    for name in sorted(set(table["set"].to_pylist())):
        rows = table.filter(pc.equal(table["set"], name))
        metrics |= {
            f"eval/{name}/{key}": value for key, value in _set_metrics(rows, samples, label)
        }
    return metrics


def _set_metrics(rows: pa.Table, samples: int, label: str) -> Iterator[tuple[str, float]]:
    greedy = pc.equal(rows["greedy"], True)
    sampled = rows.filter(pc.invert(greedy))
    columns = {"": "reward", **_views(rows, label)}
    for suffix, column in columns.items():
        binary = _is_binary(rows[column])
        yield from (
            interval(prompt_means(sampled, column), binary)
            .named(f"mean_at_{samples}{suffix}")
            .items()
        )
        if pc.any(greedy).as_py():
            best = prompt_means(rows.filter(greedy), column)
            yield from interval(best, binary).named(f"greedy{suffix}").items()
    if _is_binary(rows["reward"]):
        solved = pass_at(sampled, samples)
        yield from interval(solved, True).named(f"pass_at_{samples}").items()
    yield "prompts", float(pc.count_distinct(rows["prompt_id"]).as_py())
    yield "clipped_ratio", float(pc.mean(pc.equal(rows["finish_reason"], "length")).as_py())
    yield "errors", float(rows.num_rows - rows["error"].null_count)


def _views(rows: pa.Table, label: str) -> dict[str, str]:
    """Columns with other views that the scorer logged, such as `numeric_answer_lenient`, by suffix of the metric."""
    return {
        name.removeprefix(label): name
        for name in rows.column_names
        if name.startswith(f"{label}_") and not pa.types.is_string(rows.schema.field(name).type)
    }


def prompt_means(rows: pa.Table, column: str) -> dict[str, float]:
    """Mean of a column for each prompt, over the rows that have a value."""
    values = rows.select(["prompt_id", column]).set_column(
        1, "value", pc.cast(rows[column], pa.float64())
    )
    means = (
        values.filter(pc.is_valid(values["value"]))
        .group_by("prompt_id", use_threads=False)
        .aggregate([("value", "mean")])
    )
    return dict(
        sorted(zip(means["prompt_id"].to_pylist(), means["value_mean"].to_pylist(), strict=True))
    )


def pass_at(rows: pa.Table, k: int) -> dict[str, float]:
    """Unbiased pass@k of each prompt from n ≥ k samples, c of them right: 1 − C(n−c, k)/C(n, k).

    Chen et al. 2021, arXiv:2107.03374 eq. 1. Prompts with fewer than k scored samples are left out.
    """
    scored = rows.filter(pc.is_valid(rows["reward"]))
    right = scored.set_column(0, "right", pc.cast(pc.equal(scored["reward"], 1.0), pa.int64()))
    counts = right.group_by("prompt_id", use_threads=False).aggregate(
        [("right", "sum"), ("right", "count")]
    )
    columns = (counts[name].to_pylist() for name in ("prompt_id", "right_sum", "right_count"))
    return {
        prompt: 1.0 - math.comb(n - c, k) / math.comb(n, k)
        for prompt, c, n in sorted(zip(*columns, strict=True))
        if n >= k
    }


def interval(values: dict[str, float] | Sequence[float], binary: bool = False) -> Estimate:
    """Mean over prompts with its 95 % interval, clipped to [0, 1] for shares."""
    numbers: Floats = np.array(
        list(values.values()) if isinstance(values, dict) else values, dtype=np.float64
    )
    if not len(numbers):
        return Estimate(math.nan, math.nan, math.nan)
    mean = float(numbers.mean())
    if len(numbers) < 2:
        return Estimate(mean, math.nan, math.nan)
    half = Z95 * float(numbers.std(ddof=1)) / math.sqrt(len(numbers))
    low, high = mean - half, mean + half
    return Estimate(mean, max(low, 0.0), min(high, 1.0)) if binary else Estimate(mean, low, high)


def paired_difference(
    before: pa.Table, after: pa.Table, set_name: str
) -> tuple[float, float, float]:
    """How much better `after` is than `before` on the prompts of a set that both answered.

    Args:
        before, after: evaluations tables of two policies.
        set_name: the evaluation set.

    Returns:
        Mean difference of prompt means (sampled completions), and its 95 % interval.
    """
    means = []
    for table in (before, after):
        rows = table.filter(pc.and_(pc.equal(table["set"], set_name), pc.invert(table["greedy"])))
        means.append(prompt_means(rows, "reward"))
    shared = sorted(means[0].keys() & means[1].keys())
    estimate = interval([means[1][prompt] - means[0][prompt] for prompt in shared])
    return estimate.mean, estimate.low, estimate.high


def _is_binary(column: pa.ChunkedArray) -> bool:
    values = pc.unique(column.drop_null()).to_pylist()
    return set(values) <= {0, 1}
