"""KL to the reference as a penalty in the reward, of stored log-probs: no gradient flows through it.

    penalty[i,t] = coefficient · k(u),  u = ℓ_ref − ℓ_old clamped to ±20        r_i ← r_i − Σ_t penalty[i,t]

    k1  −u    k2  u²/2    k3  e^u − u − 1    abs  |u|

RLOO (arXiv 2402.14740; TRL 1.16, k1) and PPO (arXiv 1909.08593; verl's KL in reward). k1 is unbiased, and without a
gradient nothing speaks against it. The same estimators with a gradient are in
`pipeline/rollbook/components/losses/kl.py`.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from rollbook.components.advantages.base import AdvantageInputs, FloatArray
from rollbook.core.errors import ConfigError, Problem
from rollbook.core.ragged import Ragged

RewardKl = Literal["k1", "k2", "k3", "abs"]
"""KL estimators without a gradient; formulas at the head of the file."""
LOG_RATIO_LIMIT = 20.0
"""As in the losses: e^20 is far from any ratio that means something, e^89 is beyond float32."""

CHOOSES = "would choose among equal rewards by their KL penalty; set kl_coef to 0"
"""Why estimators that choose rollouts take no penalty."""
READS_PARTS = (
    "reads the parts of a reward, and the KL penalty is in the total; set kl_coef of the loss"
)
"""Why those that do not read the total take none."""


def token_kl(old: Ragged, ref: Ragged, loss_mask: Ragged, estimator: RewardKl) -> Ragged:
    """Per completion token: KL(old‖ref) estimated from the token alone, nats; 0 where masked.

    Args:
        old: log-probs of the policy that the update starts from.
        ref: log-probs of the reference policy.
        loss_mask: True = trained on; what the log-probs are elsewhere does not matter.
        estimator: see the head of the file.
    """
    trained = loss_mask.values
    u = np.clip(ref.values[trained] - old.values[trained], -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    estimates = {
        "k1": lambda: -u,
        "k2": lambda: np.square(u) / 2,
        "k3": lambda: np.expm1(u) - u,
        "abs": lambda: np.abs(u),
    }
    kl = np.zeros(len(trained))
    kl[trained] = estimates[estimator]()
    return Ragged(kl, loss_mask.lengths)


def token_penalties(
    old: Ragged,
    ref: Ragged,
    loss_mask: Ragged,
    coefficient: float,
    estimator: RewardKl = "k1",
) -> Ragged:
    """Per completion token: what the KL takes off the reward; 0 where masked.

    Args:
        old: log-probs of the policy that the update starts from.
        ref: log-probs of the reference policy.
        loss_mask: True = trained on.
        coefficient: weight of the KL.
        estimator: see the head of the file.
    """
    return Ragged(coefficient * token_kl(old, ref, loss_mask, estimator).values, loss_mask.lengths)


def penalized(rewards: FloatArray, penalties: Ragged) -> FloatArray:
    """[B] rewards less the penalties of their tokens; NaN stays NaN."""
    return rewards - penalties.sums()


def token_mean(kl: Ragged, loss_mask: Ragged) -> float:
    """Mean over all trained-on tokens, TRL's `kl` metric; 0 without tokens."""
    return float(np.sort(kl.sums()).sum() / max(loss_mask.counts().sum(), 1))


def row_mean(kl: Ragged, loss_mask: Ragged) -> float:
    """Mean over rows of their token means, what verl's adaptive coefficient follows; 0 without rows."""
    means = kl.sums() / np.maximum(loss_mask.counts(), 1)
    return float(np.sort(means).mean()) if means.size else 0.0


def refuse_penalty(inputs: AdvantageInputs, why: str) -> None:
    """For estimators that a KL penalty in the total makes no sense to.

    Args:
        inputs: of the estimator.
        why: that is, and what to set instead.

    Raises:
        ConfigError: if there is a penalty.
    """
    if inputs.token_penalties is not None:
        raise ConfigError([Problem("compute_advantages.kl_coef", why)])
