"""The interface of a loss: a pure function of one record of log-probs to another.

Loss files use tensor methods only and never import torch at run time, so that settings can be
checked where torch is not installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from pipeline.component import Component

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class LossInputs:
    """One micro-batch. `B` completions padded to `T` tokens, natural logs, all after temperature.

    Values at masked positions are arbitrary (even NaN) and must not matter.

    Attributes:
        policy_logprobs: [B, T] of the current policy; carries the gradient.
        old_logprobs: [B, T] of the policy before the update (constant), or None: then the current ones without gradient.
        ref_logprobs: [B, T] of the frozen reference (constant), or None.
        sampling_logprobs: [B, T] as the engine reported them (constant), or None.
        advantages: [B, 1] or [B, T], constant.
        loss_mask: [B, T] bool, True = trained on.
        entropies: [B, T] of the current policy; may carry gradient; or None.
        window_rows: completions of the whole optimizer step (all micro-batches).
        window_tokens: trained-on tokens of the whole optimizer step.
        max_completion_tokens: the generation limit, the constant denominator of Dr. GRPO.
    """

    policy_logprobs: Tensor
    advantages: Tensor
    loss_mask: Tensor
    window_rows: int
    window_tokens: int
    max_completion_tokens: int
    old_logprobs: Tensor | None = None
    ref_logprobs: Tensor | None = None
    sampling_logprobs: Tensor | None = None
    entropies: Tensor | None = None


@dataclass(frozen=True)
class LossOutputs:
    """What a loss returns for a micro-batch.

    Attributes:
        loss: scalar with gradient; micro-batches of one optimizer step are summed, never averaged.
        per_token: [B, T] detached contribution of each token before aggregation, 0 where masked.
        ratio: [B, T] detached importance ratio, 1 where masked.
        clipped_low, clipped_high: [B, T] bool, tokens held by the lower or upper bound.
        kl: [B, T] detached KL term as used, or None.
        sums: further detached scalars for metrics, to be summed over micro-batches.
    """

    loss: Tensor
    per_token: Tensor
    ratio: Tensor
    clipped_low: Tensor
    clipped_high: Tensor
    kl: Tensor | None = None
    sums: Mapping[str, Tensor] = field(default_factory=dict)


class Loss(Component):
    """A policy loss. Pure: no model, optimizer, logging or global state."""

    kind: ClassVar[str] = "losses"

    def __call__(self, inputs: LossInputs) -> LossOutputs:
        raise NotImplementedError
