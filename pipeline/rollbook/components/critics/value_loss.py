"""The value loss: a pure function of values and returns.

    ½ · agg(max((V − R)², (clamp(V, V_old − c, V_old + c) − R)²))

verl `compute_value_loss`; the clip is that of PPO's reference implementation, openai/baselines `ppo2`. The larger of
the two errors counts: moving further than c is not rewarded, and an error that grew is not hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollbook.components.losses.aggregate import Aggregation, aggregated

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ValueInputs:
    """One micro-batch. `B` completions padded to `T` tokens. What stands at masked positions must not matter.

    Attributes:
        values: [B, T] of the critic; carries the gradient.
        old_values: [B, T] of the critic before the update, constant.
        returns: [B, T] constant.
        loss_mask: [B, T] bool, True = learned from.
        window_rows: completions of the whole optimizer step that are learned from.
        window_tokens: their tokens with `loss_mask`.
        max_completion_tokens: the generation limit.
        group_tokens: [B] such tokens of each row's group.
        window_groups: groups of the step.
    """

    values: Tensor
    old_values: Tensor
    returns: Tensor
    loss_mask: Tensor
    window_rows: float
    window_tokens: float
    max_completion_tokens: int
    group_tokens: Tensor | None = None
    window_groups: float | None = None


@dataclass(frozen=True)
class ValueOutputs:
    """What the value loss says of a micro-batch.

    Attributes:
        loss: scalar with gradient; micro-batches of a step are summed.
        clipped: [B, T] bool, tokens whose clipped error is strictly the larger one.
    """

    loss: Tensor
    clipped: Tensor


def value_loss(
    inputs: ValueInputs, value_clip: float | None, aggregation: Aggregation
) -> ValueOutputs:
    """See the top of the file; `value_clip` None is the plain square."""
    mask = inputs.loss_mask
    values, old, returns = (
        each.where(mask, 0.0) for each in (inputs.values, inputs.old_values, inputs.returns)
    )
    errors = (values - returns) ** 2
    clipped = mask.new_zeros(mask.shape)
    if value_clip is not None:
        held = values.clamp(old - value_clip, old + value_clip)
        held_errors = (held - returns) ** 2
        clipped = held_errors > errors
        errors = errors.maximum(held_errors)
    return ValueOutputs(0.5 * aggregated(aggregation, errors, inputs), clipped)
