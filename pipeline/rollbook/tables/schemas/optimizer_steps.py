"""optimizer_steps: one row per optimizer step of an iteration."""

import pyarrow as pa
import pyarrow.compute as pc

from rollbook.tables.schemas.base import Column, TableSchema

SCHEMA = TableSchema(
    kind="optimizer_steps",
    version=3,
    key="optimizer_step",
    columns={
        "iteration": Column(pa.string()),
        "epoch": Column(pa.int32()),
        "optimizer_step": Column(pa.int64(), unique=True),  # counted along the chain of iterations
        "loss": Column(pa.float64()),
        "grad_norm": Column(pa.float64()),  # before clipping
        "learning_rate": Column(pa.float64()),
        "clip_low": Column(pa.float64()),  # share of tokens held by the lower bound
        "clip_high": Column(pa.float64()),
        # Null where no row of the step was computed.
        "ratio_min": Column(pa.float64(), nullable=True),
        "ratio_mean": Column(pa.float64(), nullable=True),
        "ratio_max": Column(pa.float64(), nullable=True),
        "entropy": Column(pa.float64(), nullable=True),  # token mean, nats
        "kl": Column(pa.float64(), nullable=True),
        "kl_coef": Column(pa.float64(), nullable=True),  # null without a KL term
        "entropy_coef": Column(pa.float64(), nullable=True),  # null without an entropy bonus
        # Null without a critic.
        "value_loss": Column(pa.float64(), nullable=True),  # without its weight
        "value_clip": Column(pa.float64(), nullable=True),  # share of tokens held by the value clip
        "critic_grad_norm": Column(pa.float64(), nullable=True),  # before clipping
        "tokens": Column(pa.int64()),
        "rows": Column(pa.int64()),
        "rows_skipped": Column(pa.int64()),  # rows whose gradient is exactly zero
    },
    rows={
        "loss and gradient norm are finite": lambda table: pc.and_(
            pc.is_finite(table["loss"]), pc.is_finite(table["grad_norm"])
        )
    },
)
