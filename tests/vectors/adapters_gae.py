"""Runs recorded cases of PPO's advantages, of KL in the reward and of the adaptive KL coefficient."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollbook.components.advantages.base import AdvantageInputs
from rollbook.components.advantages.gae import Gae
from rollbook.components.advantages.kl_reward import (
    RewardKl,
    penalized,
    row_mean,
    token_kl,
    token_penalties,
)
from rollbook.components.coefficients import AdaptiveKl
from tests.vectors.adapters_advantages import estimator_of, of_token_rewards, rectangle
from tests.vectors.cases import Unsupported, differs, numbers

CATEGORIES = ("gae",)
KL_NAMES: dict[str, RewardKl] = {
    "k1": "k1",
    "k2": "k2",
    "k3": "k3",
    "abs": "abs",
    "kl": "k1",
    "mse": "k2",
    "low_var_kl": "k3",
}
"""verl's names of the estimators; those that end in + have the same value."""


def run_case(_category: str, case: dict[str, Any]) -> str | None:
    """None if the code gives the recorded numbers, else what differs.

    Raises:
        Unsupported: for an implementation or a KL estimator that is not known.
    """
    impl = case["impl"]
    if impl == "verl.gae":
        return _run_gae(case)
    if impl.startswith("verl.kl_penalty"):
        return _run_kl_reward(case)
    if impl == "verl.AdaptiveKLController":
        return _run_controller(case)
    raise Unsupported(f"implementation {impl}")


def _run_gae(case: dict[str, Any]) -> str | None:
    config, given = case["config"], case["inputs"]
    mask = numbers(given["response_mask"]).astype(bool)
    rewards, penalties = of_token_rewards(
        np.where(mask, numbers(given["token_level_rewards"]), 0.0), mask
    )
    inputs = AdvantageInputs(
        rewards=rewards,
        groups=np.arange(len(mask)),
        components=rewards[:, None],
        weights=np.ones(1),
        loss_mask=rectangle(mask),
        token_penalties=penalties,
        values=rectangle(numbers(given["values"])),
    )
    estimator = estimator_of("gae", gamma=config["gamma"], lam=config["lam"])
    assert isinstance(estimator, Gae)
    whitened = estimator(inputs).token_advantages
    assert whitened is not None
    return _first_difference(
        case,
        raw_advantages=estimator.raw(inputs).padded(0.0),
        returns=estimator.returns(inputs).padded(0.0),
        whitened_advantages=whitened.padded(0.0),
    )


def _run_kl_reward(case: dict[str, Any]) -> str | None:
    config, given = case["config"], case["inputs"]
    name = config["kl_estimator"].removesuffix("+")
    if name not in KL_NAMES:
        raise Unsupported(f"KL estimator {name}")
    old, ref = (rectangle(numbers(given[f"{which}_logps"])) for which in ("old", "ref"))
    mask = numbers(given["response_mask"]).astype(bool)
    kl = token_kl(old, ref, rectangle(mask), KL_NAMES[name])
    penalties = token_penalties(old, ref, rectangle(mask), config["kl_coef"], KL_NAMES[name])
    scores = numbers(given["token_level_scores"])
    totals, elsewhere = of_token_rewards(scores, mask)
    if elsewhere is not None:
        raise Unsupported("scores of single tokens; here a reward stands on the last one")
    inputs = AdvantageInputs(
        rewards=penalized(totals, penalties),
        groups=np.arange(len(mask)),
        components=totals[:, None],
        weights=np.ones(1),
        loss_mask=rectangle(mask),
        token_penalties=penalties,
    )
    return _first_difference(
        case,
        token_level_rewards=inputs.token_rewards.padded(0.0),
        mean_kl=row_mean(kl, rectangle(mask)),
    )


def _run_controller(case: dict[str, Any]) -> str | None:
    config = case["config"]
    coefficient = AdaptiveKl(
        start=config["init_kl_coef"], target=config["target_kl"], horizon=config["horizon"]
    )
    value, found = coefficient.start, []
    for update in case["inputs"]["updates"]:
        value = coefficient.next(value, update["current_kl"], update["n_steps"])
        found.append(value)
    return _first_difference(case, kl_coef=found)


def _first_difference(case: dict[str, Any], **found: Any) -> str | None:
    tol = case["tol"]
    texts = (
        differs(name, found[name], want, tol["rtol"], tol["atol"])
        for name, want in case["expected"].items()
    )
    return next((text for text in texts if text is not None), None)
