"""Runs recorded advantage cases through Rollbook's estimators, translating the libraries' option names."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.advantages.base import AdvantageInputs, AdvantageOutputs
from pipeline.advantages.group import Group
from pipeline.advantages.metrics import advantage_metrics
from pipeline.rewards.totals import reward_metrics, weighted_total
from tests.vectors.cases import Unsupported, differs, metrics_differ, numbers

CATEGORIES = ("advantages", "advantages_verl")


def run_case(category: str, case: dict[str, Any]) -> str | None:
    """None if the estimator gives the recorded numbers, else what differs.

    Raises:
        Unsupported: if no estimator is meant to give them.
    """
    if category == "advantages":
        return _run_trl(case)
    if category == "advantages_verl":
        return _run_verl(case)
    raise Unsupported(f"category {category}")


def _run_trl(case: dict[str, Any]) -> str | None:
    """`rewards_per_func` to advantages and metrics, as TRL's GRPOTrainer; z-scores of scipy."""
    config, expected, tol = case["config"], case["expected"], case["tol"]
    if case["impl"] not in ("trl.grpo", "scipy.stats.zscore"):
        raise Unsupported(f"estimator {case['impl']}")
    if config.get("multi_objective_aggregation") == "normalize_then_sum":
        raise Unsupported("GDPO")
    estimator = Group(scale=config["scale_rewards"], std_ddof=config["std_ddof"], eps=config["eps"])
    components = numbers(case["inputs"]["rewards_per_func"])
    weights = config.get("reward_weights", [1.0] * components.shape[1])
    groups = np.arange(len(components)) // config["num_generations"]
    inputs = AdvantageInputs(
        rewards=weighted_total(components, weights),
        groups=groups,
        components=components,
        weights=np.array(weights),
        lengths=np.ones(len(components), dtype=np.int64),
    )
    outputs = estimator(inputs)
    labels = [f"r{place}" for place in range(len(weights))]
    metrics = {
        **reward_metrics(inputs.rewards, components, labels),
        **advantage_metrics(outputs, inputs.rewards, groups),
    }
    return differs(
        "advantages", outputs.advantages, expected["advantages"], tol["rtol"], tol["atol"]
    ) or metrics_differ(metrics, expected.get("metrics", {}), tol)


def _run_verl(case: dict[str, Any]) -> str | None:
    """Token-level rewards; every token of a completion carries its advantage."""
    config, tol = case["config"], case["tol"]
    if config.get("estimator") not in ("grpo", "grpo_vectorized"):
        raise Unsupported(f"estimator {config.get('estimator', case['impl'])}")
    groups = np.array(case["inputs"]["group"])
    if (np.bincount(groups) == 1).any():
        raise Unsupported("verl keeps the raw reward of a singleton; here it is 0, as in TRL")
    rewards = numbers(case["inputs"]["token_level_rewards"]).sum(axis=1)
    mask = numbers(case["inputs"]["response_mask"])
    estimator = Group(
        scale="group" if config["norm_by_std"] else "none",
        std_ddof=config.get("std_ddof", 1),
        eps=config.get("eps", 0.0),
    )
    outputs: AdvantageOutputs = estimator(
        AdvantageInputs(
            rewards=rewards,
            groups=groups,
            components=rewards[:, None],
            weights=np.ones(1),
            lengths=mask.sum(axis=1).astype(np.int64),
        )
    )
    tokens = outputs.advantages[:, None] * mask
    return differs("advantages", tokens, case["expected"]["advantages"], tol["rtol"], tol["atol"])
