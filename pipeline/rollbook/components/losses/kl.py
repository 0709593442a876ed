"""Estimates of KL(policy‖reference) from the sampled tokens alone, with u = ℓ_ref − ℓ (joschu.net/blog/kl-approx.html).

k1   −u             unbiased; as a loss its gradient is 0 in expectation
k2   u²/2           biased; its gradient −u∇ℓ is that of the reverse KL on-policy
k3   e^u − u − 1    unbiased and ≥ 0; gradient (1 − e^u)∇ℓ: GRPO, arXiv 2402.03300 eq. 4
abs  |u|
k1+, k3+            value of k1 and k3, gradient of k2 (verl)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from rollbook.components.losses.ratio import LOG_RATIO_LIMIT

if TYPE_CHECKING:
    from torch import Tensor

KlEstimator = Literal["k1", "k2", "k3", "abs", "k1+", "k3+"]

STRAIGHT_THROUGH = ("k1+", "k3+")
CORRECTABLE = ("k1", "k3")
"""Unbiased values, which the ratio gives the right gradient. That of k2 is right already."""


def kl_estimate(estimator: KlEstimator, policy_logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """[B, T] KL of each token, nats; the gradient goes through `policy_logprobs`. u is clamped to ±20."""
    u = (ref_logprobs - policy_logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    if estimator in STRAIGHT_THROUGH:
        k2 = u.square() / 2
        return k2 + (_plain(estimator[:2], u) - k2).detach()
    return _plain(estimator, u)


def _plain(estimator: str, u: Tensor) -> Tensor:
    if estimator == "k1":
        return -u
    if estimator == "k2":
        return u.square() / 2
    if estimator == "abs":
        return u.abs()
    return u.exp() - u - 1
