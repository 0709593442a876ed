"""Runs recorded advantage cases through Rollbook's estimators, translating the libraries' option names."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.components.advantages.base import (
    AdvantageEstimator,
    AdvantageInputs,
    AdvantageOutputs,
)
from rollbook.components.advantages.kl_reward import (
    penalized,
    token_kl,
    token_mean,
    token_penalties,
)
from rollbook.components.advantages.metrics import advantage_metrics
from rollbook.core.ragged import Ragged
from rollbook.core.registry import build
from rollbook.rl.scoring.totals import reward_metrics, weighted_total
from rollbook.settings.recipe_sections import ComputeAdvantages
from tests.vectors.cases import KnownDifference, Unsupported, differs, metrics_differ, numbers

CATEGORIES = ("advantages", "advantages_verl")
VERL_NAMES = {
    "grpo": "group",
    "grpo_vectorized": "group",
    "rloo": "leave_one_out",
    "rloo_vectorized": "leave_one_out",
    "reinforce_plus_plus": "reinforce_plus_plus",
    "reinforce_plus_plus_baseline": "reinforce_plus_plus_baseline",
    "opo": "opo",
    "grpo_passk": "pass_at_k",
    "gpg": "gpg",
    "remax": "remax",
    "gdpo": "gdpo",
}
"""Estimators of verl by the names of ours."""
PER_TOKEN = {"reinforce_plus_plus", "remax"}
"""Estimators of verl that read rewards of tokens; the others add up what stands in a row."""
KEEPS_SINGLE_REWARD = {
    "grpo",
    "grpo_vectorized",
    "rloo",
    "reinforce_plus_plus_baseline",
    "opo",
    "gpg",
}
"""Estimators of verl that give a completion without siblings its raw reward."""


def run_case(category: str, case: dict[str, Any]) -> str | None:
    """None if the estimator gives the recorded numbers, else what differs.

    Raises:
        Unsupported: if no estimator is meant to give them.
    """
    if category == "advantages":
        return _run_rloo(case) if case["impl"] == "trl.rloo" else _run_trl(case)
    if category == "advantages_verl":
        return _run_verl(case)
    raise Unsupported(f"category {category}")


def estimator_of(name: str, **options: Any) -> AdvantageEstimator:
    """The estimator that `{name: ..., **options}` in params.yaml builds."""
    estimator = build("advantages", {"name": name, **options})
    assert isinstance(estimator, AdvantageEstimator)
    return estimator


def rectangle(array: NDArray[Any]) -> Ragged:
    """[B, T] as lists that all have T items."""
    return Ragged(array.ravel(), np.full(len(array), array.shape[1], dtype=np.int64))


def _run_trl(case: dict[str, Any]) -> str | None:
    """`rewards_per_func` to advantages and metrics, as TRL's GRPOTrainer; z-scores of scipy."""
    config = case["config"]
    if case["impl"] not in ("trl.grpo", "scipy.stats.zscore"):
        raise Unsupported(f"estimator {case['impl']}")
    if np.isnan(numbers(case["expected"]["advantages"])).any():
        raise KnownDifference("NaN for a group without spread; here it is 0, as in TRL")
    options = {"std_ddof": config["std_ddof"], "eps": config["eps"]}
    if config.get("multi_objective_aggregation") == "normalize_then_sum":
        estimator = estimator_of("gdpo", whiten="completion", **options)
    else:
        scale = {True: "group", False: "none"}.get(config["scale_rewards"], config["scale_rewards"])
        estimator = estimator_of("group", scale=scale, **options)
    inputs = _trl_inputs(case)
    return _compare(case, inputs, estimator(inputs), inputs.rewards, {})


def _run_rloo(case: dict[str, Any]) -> str | None:
    """TRL's RLOOTrainer: rewards are clipped, then less the KL, then less their siblings' mean."""
    config, given = case["config"], case["inputs"]
    estimator = estimator_of(
        "leave_one_out",
        normalize=config["normalize_advantages"],
        std_ddof=config["std_ddof"],
        eps=config["eps"],
    )
    settings = ComputeAdvantages(
        estimator=estimator, reward_clip=config["reward_clip_range"], kl_coef=config["beta"]
    )
    raw = _trl_inputs(case)
    rewards, metrics = raw.rewards, {}
    if settings.reward_clip is not None:
        rewards = np.clip(rewards, *settings.reward_clip)
    penalties = None
    if config["beta"]:
        old, ref = (rectangle(numbers(given[f"{name}_logps"])) for name in ("old", "ref"))
        penalties = token_penalties(old, ref, raw.loss_mask, config["beta"], settings.kl_estimator)
        rewards = penalized(rewards, penalties)
        kl = token_kl(old, ref, raw.loss_mask, settings.kl_estimator)
        metrics["kl"] = token_mean(kl, raw.loss_mask)
    inputs = AdvantageInputs(
        rewards=rewards,
        groups=raw.groups,
        components=raw.components,
        weights=raw.weights,
        loss_mask=raw.loss_mask,
        token_penalties=penalties,
    )
    return _compare(case, inputs, estimator(inputs), raw.rewards, metrics)


def _trl_inputs(case: dict[str, Any]) -> AdvantageInputs:
    config, given = case["config"], case["inputs"]
    components = numbers(given["rewards_per_func"])
    weights = config.get("reward_weights") or [1.0] * components.shape[1]
    mask = numbers(given.get("completion_mask", [[1]] * len(components))).astype(bool)
    if given.get("tool_mask") is not None:
        mask &= numbers(given["tool_mask"]).astype(bool)
    return AdvantageInputs(
        rewards=weighted_total(components, weights),
        groups=np.arange(len(components)) // config["num_generations"],
        components=components,
        weights=np.array(weights),
        loss_mask=rectangle(mask),
    )


def _compare(
    case: dict[str, Any],
    inputs: AdvantageInputs,
    outputs: AdvantageOutputs,
    rewards: NDArray[np.float64],
    metrics: dict[str, float],
) -> str | None:
    expected, tol = case["expected"], case["tol"]
    labels = [f"r{place}" for place in range(len(inputs.weights))]
    found = {
        **reward_metrics(rewards, inputs.components, labels),
        **advantage_metrics(outputs, inputs.rewards, inputs.groups),
        **metrics,
    }
    return differs(
        "advantages", outputs.advantages, expected["advantages"], tol["rtol"], tol["atol"]
    ) or metrics_differ(found, expected.get("metrics", {}), tol)


def _run_verl(case: dict[str, Any]) -> str | None:
    """Token-level rewards to one advantage per token."""
    config, tol = case["config"], case["tol"]
    theirs = config.get("estimator", case["impl"].removeprefix("verl."))
    if theirs not in VERL_NAMES:
        raise Unsupported(f"estimator {theirs}")
    inputs = _verl_inputs(case)
    if theirs == "gdpo" and (np.unique(inputs.groups, return_counts=True)[1] == 1).any():
        raise KnownDifference("verl keeps the raw rewards of a singleton; here gdpo makes them 0")
    outputs = estimator_of(VERL_NAMES[theirs], **_verl_options(theirs, config))(inputs)
    tokens = outputs.token_advantages
    mask = inputs.loss_mask.padded(False)
    found = outputs.advantages[:, None] * mask if tokens is None else tokens.padded(0.0)
    return differs("advantages", found, case["expected"]["advantages"], tol["rtol"], tol["atol"])


def _verl_options(theirs: str, config: dict[str, Any]) -> dict[str, Any]:
    deviation = {"std_ddof": config.get("std_ddof", 1), "eps": config.get("eps", 1e-6)}
    single = {"singleton": "reward"} if theirs in KEEPS_SINGLE_REWARD else {}
    divides = config.get("norm_by_std", True)
    if theirs == "gdpo":
        if not divides:
            raise Unsupported("GDPO without division by the deviation of each reward")
        return {"whiten": "token", **deviation}
    if VERL_NAMES[theirs] in ("group", "pass_at_k"):
        return {"scale": "group" if divides else "none", **deviation, **single}
    return {"gamma": config.get("gamma", 1.0)} if theirs == "reinforce_plus_plus" else single


def _verl_inputs(case: dict[str, Any]) -> AdvantageInputs:
    config, given = case["config"], case["inputs"]
    mask = numbers(given["response_mask"]).astype(bool)
    groups = given.get("group")
    labels = np.arange(len(mask)) if groups is None else np.unique(groups, return_inverse=True)[1]
    greedy = config.get("reward_baselines", given.get("reward_baselines"))
    if "rewards_per_func" in given:
        components, penalties = numbers(given["rewards_per_func"]), None
        weights = config.get("reward_weights") or [1.0] * components.shape[1]
        rewards = weighted_total(components, weights)
    else:
        tokens = numbers(given["token_level_rewards"])
        if config.get("estimator") in PER_TOKEN:
            tokens = np.where(mask, tokens, 0.0)
        rewards, penalties = of_token_rewards(tokens, mask)
        components, weights = rewards[:, None], [1.0]
    return AdvantageInputs(
        rewards=rewards,
        groups=labels,
        components=components,
        weights=np.array(weights),
        loss_mask=rectangle(mask),
        token_penalties=penalties,
        greedy_rewards=None if greedy is None else numbers(greedy),
    )


def of_token_rewards(
    tokens: NDArray[np.float64], mask: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], Ragged | None]:
    """Rewards [B] and penalties that say the same as rewards of tokens [B, T].

    A reward that stands on the last trained-on token needs no penalties; any other is a negative penalty of its token.
    """
    last = mask.shape[1] - 1 - np.argmax(mask[:, ::-1], axis=1)
    elsewhere = np.where(mask, tokens, 0.0)
    elsewhere[np.arange(len(tokens)), last] = 0.0
    return tokens.sum(axis=1), rectangle(-elsewhere) if elsewhere.any() else None
