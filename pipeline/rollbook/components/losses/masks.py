"""Which tokens and rows take part in the policy term."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor


def on_policy(
    policy_logprobs: Tensor,
    sampling_logprobs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor,
    threshold: float,
) -> Tensor:
    """[B, T] False where the advantage is negative and its row has drifted from the policy that sampled it.

    A row's drift is the mean of sampling − policy log-prob over its trained-on tokens, nats (DeepSeek-V3.2,
    arXiv 2512.02556 §3.1; TRL `off_policy_mask_threshold`). No gradient.

    Args:
        policy_logprobs, sampling_logprobs: [B, T], 0 where masked; a sampling log-prob that is unknown (NaN) counts
            as if the engine agreed.
        advantages: [B, T] or [B, 1].
        loss_mask: [B, T] bool.
        threshold: drift above which the row is dropped.
    """
    tokens = loss_mask.sum(-1, keepdim=True).clamp(min=1)
    gaps = sampling_logprobs - policy_logprobs
    drift = gaps.where(~gaps.isnan(), 0.0).sum(-1, keepdim=True) / tokens
    return ~((advantages < 0) & (drift > threshold)).expand_as(loss_mask)


def top_entropy(
    entropies: NDArray[np.floating], loss_mask: NDArray[np.bool_], share: float
) -> NDArray[np.bool_]:
    """[N] True on the `share` of trained-on tokens with the highest entropy, ties included (arXiv 2506.01939).

    The threshold is the linearly interpolated (1 − share)-quantile, in float32 as in TRL 1.16
    (`top_entropy_quantile`); entropies are rounded the same way before they are compared, else the very token that
    defines the threshold can fall below it. Share 0 keeps the maximum.

    Args:
        entropies: [N] of all tokens that are pooled, nats; arbitrary where masked.
        loss_mask: [N] True = trained on.
        share: of the trained-on tokens, from 0 to 1.
    """
    rounded = entropies.astype(np.float32)
    ranked = np.sort(rounded[loss_mask])
    if not len(ranked):
        return np.zeros(len(entropies), bool)
    place = np.float32(1 - share) * np.float32(len(ranked) - 1)
    below, above = ranked[math.floor(place)], ranked[min(math.ceil(place), len(ranked) - 1)]
    weight, gap = np.float32(place - np.floor(place)), above - below
    # From the nearer end, so that a place that is an end up to rounding gives that end itself.
    threshold = below + weight * gap if weight < 0.5 else above - gap * (1 - weight)
    chosen: NDArray[np.bool_] = loss_mask & (rounded >= threshold)
    return chosen
