"""What an update did, as tables and metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rollbook.core.ragged import Ragged
from rollbook.rl.training.mismatch import mismatch_metrics, reported
from rollbook.tables.artifacts import schema_of
from rollbook.tables.schemas.rollouts import IDS

if TYPE_CHECKING:
    from rollbook.rl.training.records import StepRecord, UpdateRecord
    from rollbook.rl.training.rows import TrainingRows

NOT_KEPT, NO_TOKENS, NO_SIGNAL = "not kept", "no tokens to train on", "advantage is 0"
LAST, LOWEST, HIGHEST = ("learning_rate", "kl_coef", "entropy_coef"), ("ratio/min",), ("ratio/max",)
"""Metrics whose value over an iteration is that of the last step, the lowest or the highest; of all others the mean."""
WHERE_GIVEN = {
    **{name: name for name in ("kl", "kl_coef", "entropy_coef", "value_loss", "critic_grad_norm")},
    "value_clip": "value_clip_ratio",
}
"""Columns of an optimizer step and their metrics, which only some recipes have."""


def updates_table(rollouts: pa.Table, rows: TrainingRows, record: UpdateRecord) -> pa.Table:
    """One row per rollout; numbers are null where the rollout was not trained on."""
    numbers, trained = record.numbers, record.computed & (rows.trained_tokens > 0)
    nothing = np.full(len(rows), np.nan)

    def number(values: NDArray[np.float64]) -> pa.Array:
        return pa.array(values, mask=~trained | np.isnan(values))

    def mean(name: str) -> NDArray[np.float64]:
        tokens = numbers.get("tokens", nothing)
        return numbers.get(name, nothing) / np.where(tokens > 0, tokens, np.nan)

    absolute = np.nan_to_num(numbers.get("absolute_loss", nothing))
    emptied = np.where(rows.emptied_by == "", NO_TOKENS, rows.emptied_by)
    reason = np.select(
        [trained, ~rows.kept, rows.trained_tokens == 0], ["", NOT_KEPT, emptied], NO_SIGNAL
    )
    return schema_of("updates").build(
        {
            **{name: rollouts[name] for name in IDS},
            "trained": trained,
            "reason": pa.array(reason, pa.string(), mask=trained),
            "policy_logprobs": record.policy_logprobs.to_column(trained),
            "ratio_mean": number(mean("ratio")),
            "ratio_min": number(numbers.get("ratio_min", nothing)),
            "ratio_max": number(numbers.get("ratio_max", nothing)),
            "clipped_fraction": number(mean("clipped_low") + mean("clipped_high")),
            "kl": number(mean("kl")) if "kl" in numbers else pa.nulls(len(rows), pa.float64()),
            "rollout_weight": number(_mean_weights(rows)),
            "loss_share": number(absolute / max(absolute.sum(), np.finfo(float).tiny)),
        }
    )


def _mean_weights(rows: TrainingRows) -> NDArray[np.float64]:
    """[R] mean weight of a row's trained-on tokens under rollout correction, NaN without tokens or correction."""
    if rows.rollout_weights is None:
        return np.full(len(rows), np.nan)
    weights = Ragged(rows.rollout_weights.values * rows.loss_mask.values, rows.loss_mask.lengths)
    with np.errstate(invalid="ignore"):
        return weights.sums() / rows.trained_tokens


def optimizer_steps_table(iteration: str, steps: list[StepRecord]) -> pa.Table:
    """One row per optimizer step."""
    columns = {
        "clip_low": "clip_ratio/low_mean",
        "clip_high": "clip_ratio/high_mean",
        "ratio_min": "ratio/min",
        "ratio_mean": "ratio/mean",
        "ratio_max": "ratio/max",
        "entropy": "entropy",
    }
    plain = ("epoch", "optimizer_step", "loss", "grad_norm", "learning_rate", "tokens", "rows")
    return schema_of("optimizer_steps").build(
        {
            "iteration": [iteration] * len(steps),
            **{name: [getattr(step, name) for step in steps] for name in (*plain, "rows_skipped")},
            **{
                column: pa.array(
                    [step.metrics[name] for step in steps], pa.float64(), from_pandas=True
                )
                for column, name in columns.items()
            },
            **{
                column: pa.array(
                    [step.metrics.get(name) for step in steps], pa.float64(), from_pandas=True
                )
                for column, name in WHERE_GIVEN.items()
            },
        }
    )


def update_metrics(steps: list[StepRecord], rows: TrainingRows) -> dict[str, float]:
    """Metrics of the iteration; NaN where no step has a number."""
    per_step: dict[str, list[float]] = {}
    for step in steps:
        own = {
            "loss": step.loss,
            "grad_norm": step.grad_norm,
            "learning_rate": step.learning_rate,
            "frac_rows_skipped": step.rows_skipped / step.rows,
            "frac_tokens_skipped": step.tokens_skipped / max(step.tokens, 1),
        }
        for name, value in {**own, **step.metrics}.items():
            per_step.setdefault(name, []).append(value)
    return {
        **{name: _over_steps(name, np.array(values)) for name, values in per_step.items()},
        "optimizer_step": steps[-1].optimizer_step,
        "num_tokens": sum(step.tokens for step in steps),
        "frac_rows_not_kept": float(1 - rows.kept[~rows.greedy].mean()),
        "frac_rows_emptied": float((rows.emptied_by[rows.kept] != "").mean()),
        **rows.correction_metrics,
    }


def engine_metrics(
    logprobs: pa.Table, rows: TrainingRows, record: UpdateRecord
) -> dict[str, float]:
    """How far the trainer is from the engine, where measure_logprobs has not measured it.

    Compared are the computed rows of the first optimizer step, while the policy is still the one that generated. Rows
    whose gradient is 0 are not computed and not among them.
    """
    if logprobs["old_logprobs"].null_count < logprobs.num_rows:
        return {}
    first = record.first_rows
    sampling, mask = rows.sampling_logprobs.rows(first), rows.loss_mask.rows(first)
    return reported(mismatch_metrics(record.first_logprobs, sampling, mask))


def _over_steps(name: str, values: NDArray[Any]) -> float:
    values = values[np.isfinite(values)]
    if not len(values):
        return float("nan")
    if name in LAST:
        return float(values[-1])
    if name in LOWEST:
        return float(values.min())
    return float(values.max() if name in HIGHEST else values.mean())


def value_metrics(rows: TrainingRows) -> dict[str, float]:
    """What the critic said before the update against what it should have said, over the tokens it learns from.

    `explained_variance` is 1 − Var(R − V)/Var(R): 1 is perfect, 0 no better than a constant, below 0 worse. NaN where
    all returns are equal.
    """
    if rows.old_values is None or rows.returns is None:
        return {}
    kept = rows.value_mask.values & rows.kept[rows.value_mask.row_of]
    values = rows.old_values.values[kept].astype(np.float64)
    returns = rows.returns.values[kept].astype(np.float64)
    if not len(values):
        return {}
    unexplained, spread = float((returns - values).var()), float(returns.var())
    return {
        "values/mean": float(values.mean()),
        "returns/mean": float(returns.mean()),
        "returns/std": float(returns.std()),
        "explained_variance": 1 - unexplained / spread if spread else float("nan"),
    }
