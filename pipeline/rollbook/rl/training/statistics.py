"""What an update did: sums per rollout, from which the metrics of optimizer steps follow however rows were batched.

Definitions and names are TRL 1.16's (`clip_ratio/*`, `kl`, `entropy`); `ratio/*` and `kl_old` are our own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from rollbook.components.losses.base import Loss, LossInputs, LossOutputs

RowNumbers = dict[str, NDArray[np.float64]]
"""[R] numbers by name; see `row_statistics`."""

ALWAYS = ("tokens", "ratio", "clipped_low", "clipped_high", "kl_old", "absolute_loss")
WHERE_GIVEN = ("kl", "entropy")
EXTREMES = ("ratio_min", "ratio_max")
OF_PAIRS = "pairs: "
"""What sums over the pairs that a row is chosen in are called by, before the metric's name; alone, their count."""


def row_statistics(inputs: LossInputs, outputs: LossOutputs) -> RowNumbers:
    """Numbers of each row of a micro-batch over its trained-on tokens, float64 [B].

    Returns:
        `tokens`; sums of `ratio`, `clipped_low`, `clipped_high`, `kl_old` ((ρ − 1) − log ρ), `absolute_loss`, and
        of `kl` and `entropy` where given; `ratio_min`, `ratio_max` (NaN without tokens); the loss's row metrics; sums
        of its pair metrics by the row that is chosen.
    """
    mask, ratio = inputs.loss_mask, outputs.ratio.double()
    given: dict[str, Tensor | None] = {
        "ratio": ratio,
        "clipped_low": outputs.clipped_low,
        "clipped_high": outputs.clipped_high,
        "kl_old": (ratio - 1) - ratio.log(),
        "absolute_loss": outputs.per_token.abs(),
        "kl": outputs.kl,
        "entropy": inputs.entropies,
    }
    present = {name: value.double() for name, value in given.items() if value is not None}
    numbers = {name: value.where(mask, 0.0).sum(-1) for name, value in present.items()}
    numbers["tokens"] = mask.sum(-1)
    has_tokens = mask.any(-1)
    lowest, highest = ratio.where(mask, float("inf")), ratio.where(mask, float("-inf"))
    numbers["ratio_min"] = lowest.amin(-1).where(has_tokens, float("nan"))
    numbers["ratio_max"] = highest.amax(-1).where(has_tokens, float("nan"))
    numbers |= outputs.row_metrics
    if inputs.pairs is not None:
        chosen, nothing = inputs.pairs[:, 0], ratio.new_zeros(len(ratio))
        numbers[OF_PAIRS] = nothing.index_add(0, chosen, ratio.new_ones(len(chosen)))
        for name, value in outputs.pair_metrics.items():
            numbers[OF_PAIRS + name] = nothing.index_add(0, chosen, value.double())
    return {name: value.detach().double().cpu().numpy() for name, value in numbers.items()}


def joined(parts: Sequence[RowNumbers]) -> RowNumbers:
    """The rows of several micro-batches behind each other; without any, empty columns."""
    if not parts:
        return dict.fromkeys((*ALWAYS, *EXTREMES, "entropy"), np.empty(0))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def counts_rows(loss: Loss, has_token_advantages: bool) -> bool:
    """Whether ratio and clips have one value per row: with advantages of tokens a row may be clipped in part (TRL)."""
    return loss.per_row and not has_token_advantages


def step_metrics(
    rows: RowNumbers,
    per_row: bool,
    skipped_tokens: NDArray[np.float64] | None = None,
    further_names: Mapping[str, str] | None = None,
) -> dict[str, float]:
    """Metrics of an optimizer step; NaN where there is nothing to average.

    Args:
        rows: of all rows that were computed.
        per_row: whether ratio and clips have one value per row; shares are then counted in rows.
        skipped_tokens: [S] trained-on tokens of rows that were not computed because their gradient is 0.
            They are never clipped, and count in the denominators of the clip shares.
        further_names: names of metrics that repeat others, and those (`Loss.clip_metrics`).
    """
    skipped = np.empty(0) if skipped_tokens is None else skipped_tokens
    tokens = rows["tokens"]
    metrics = _clip_shares(rows, per_row, skipped)
    for name in WHERE_GIVEN:
        if name in rows:  # of rows that are masked throughout 0, as TRL says
            metrics[name] = _ratio(rows[name].sum(), max(tokens.sum(), min(len(tokens), 1)))
    metrics["kl_old"] = _ratio(rows["kl_old"].sum(), tokens.sum())
    has_tokens = tokens > 0
    metrics["ratio/mean"] = _ratio(rows["ratio"].sum(), tokens.sum())
    metrics["ratio/min"] = _extreme(np.min, rows["ratio_min"][has_tokens])
    metrics["ratio/max"] = _extreme(np.max, rows["ratio_max"][has_tokens])
    for name in sorted(rows.keys() - {*ALWAYS, *WHERE_GIVEN, *EXTREMES, OF_PAIRS}):
        if name.startswith(OF_PAIRS):
            metrics[name.removeprefix(OF_PAIRS)] = _ratio(rows[name].sum(), rows[OF_PAIRS].sum())
        else:
            metrics[name] = _ratio(rows[name].sum(), len(tokens))
    return metrics | {name: metrics[same] for name, same in (further_names or {}).items()}


def _clip_shares(rows: RowNumbers, per_row: bool, skipped: NDArray[np.float64]) -> dict[str, float]:
    """`low_*`: held by the lower bound, `high_*`: by the upper; `low_min`, `high_max`: of the rows' own shares.

    A row without tokens has no share of them; where rows are counted and not tokens, it is one that is not clipped.
    """
    tokens = rows["tokens"]
    counted = (tokens > 0) | per_row
    unclipped = np.zeros(((skipped > 0) | per_row).sum())
    means, shares = [], []
    for counts in (rows["clipped_low"], rows["clipped_high"]):
        of_row = counts / np.maximum(tokens, 1)
        means.append(
            float(of_row.sum()) / max(len(tokens) + len(skipped), 1)
            if per_row
            else float(counts.sum()) / max(tokens.sum() + skipped.sum(), 1)
        )
        shares.append(np.concatenate([of_row[counted], unclipped]))
    return {
        "clip_ratio/low_mean": means[0],
        "clip_ratio/low_min": _extreme(np.min, shares[0]),
        "clip_ratio/high_mean": means[1],
        "clip_ratio/high_max": _extreme(np.max, shares[1]),
        "clip_ratio/region_mean": means[0] + means[1],
    }


def _ratio(total: float, count: float) -> float:
    return float(total) / float(count) if count else float("nan")


def _extreme(function: Callable[..., Any], values: NDArray[np.float64]) -> float:
    return float(function(values)) if len(values) else float("nan")
