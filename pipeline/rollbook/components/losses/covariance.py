"""Covariance of advantage and log-prob, token by token: where the policy's entropy goes (arXiv 2505.22617).

cov[i,t] = (A − mean A) · (ℓ − mean ℓ), means over the trained-on tokens of the micro-batch
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from rollbook.components.losses.base import Tokens


def covariances(tokens: Tokens) -> Tensor:
    """[B, T] float64 without gradient; arbitrary where masked."""
    return _centered(tokens.advantages, tokens.loss_mask) * _centered(
        tokens.policy_logprobs, tokens.loss_mask
    )


def largest(values: Tensor, among: Tensor, count: int) -> Tensor:
    """[B, T] bool, True on the `count` largest values, or on all of `among` if those are fewer.

    Args:
        values: [B, T].
        among: [B, T] bool, the tokens to choose from.
        count: how many.
    """
    flat = values.where(among, float("-inf")).flatten()
    places = flat.topk(min(count, len(flat))).indices
    return among & among.new_zeros(len(flat)).index_fill(0, places, True).view_as(among)


def _centered(values: Tensor, mask: Tensor) -> Tensor:
    exact = values.detach().double()
    return exact - exact.where(mask, 0.0).sum() / mask.sum().clamp(min=1)
