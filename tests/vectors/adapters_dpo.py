"""Runs recorded cases of DPO: pairs from the estimator, their loss, its gradient and TRL's metrics."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollbook.components.advantages.base import AdvantageInputs
from rollbook.components.losses.base import Loss, LossInputs
from rollbook.core.ragged import IntArray
from rollbook.core.registry import build
from rollbook.rl.training.statistics import row_statistics, step_metrics
from tests.vectors.adapters_advantages import estimator_of, rectangle
from tests.vectors.cases import Unsupported, differs, metrics_differ, numbers

CATEGORIES = ("dpo",)
SIDES = ("chosen", "rejected")


def run_case(_category: str, case: dict[str, Any]) -> str | None:
    """None if pairs, loss, gradient and metrics are the recorded ones, else what differs.

    Raises:
        Unsupported: for an implementation or a combination of losses that is not known.
    """
    if case["impl"] == "trl.dpo":
        return _run_pairs(case)
    if case["impl"].endswith("+ trl.dpo"):
        return _run_groups(case)
    raise Unsupported(f"implementation {case['impl']}")


def _run_pairs(case: dict[str, Any]) -> str | None:
    """Chosen and rejected answers are given: row i of the one against row i of the other."""
    given = case["inputs"]
    policy, ref, mask = (
        np.concatenate([numbers(given[name.format(side)]) for side in SIDES])
        for name in ("{}_logps", "ref_{}_logps", "{}_mask")
    )
    pairs = np.arange(len(policy)).reshape(2, -1).T
    gradients = [case["expected"][f"grad_{side}_logps"] for side in SIDES]
    return _run(case, policy, ref, mask, pairs, [*gradients[0], *gradients[1]])


def _run_groups(case: dict[str, Any]) -> str | None:
    """Pairs are those that the estimator makes of the rewards."""
    config, given, expected = case["config"], case["inputs"], case["expected"]
    rewards, mask = numbers(given["rewards"]), numbers(given["completion_mask"])
    estimator = estimator_of("pairs", pairing=config["pairing"], min_gap=config.get("min_gap", 0.0))
    found = estimator(
        AdvantageInputs(
            rewards=rewards,
            groups=np.arange(len(rewards)) // config["num_generations"],
            components=rewards[:, None],
            weights=np.ones(1),
            loss_mask=rectangle(mask.astype(bool)),
        )
    )
    assert found.pairs is not None
    policy, ref = numbers(given["logps"]), numbers(given["ref_logps"])
    return differs("pairs", found.pairs, expected["pairs"], 0, 0) or _run(
        case, policy, ref, mask, found.pairs, expected["grad_logps"]
    )


def _run(
    case: dict[str, Any],
    policy: NDArray[np.float64],
    ref: NDArray[np.float64],
    mask: NDArray[np.float64],
    pairs: IntArray,
    gradient: Any,
) -> str | None:
    loss, scale = _loss_of(case["config"])
    leaf = torch.from_numpy(policy).requires_grad_()
    trained = torch.from_numpy(mask.astype(bool))
    inputs = LossInputs(
        policy_logprobs=leaf,
        advantages=leaf.new_zeros(len(leaf), 1),
        loss_mask=trained,
        window_rows=len(leaf),
        window_tokens=int(trained.sum()),
        max_completion_tokens=leaf.shape[1],
        ref_logprobs=torch.from_numpy(ref),
        pairs=torch.from_numpy(pairs),
        window_pairs=len(pairs),
        window_chosen_tokens=int(trained[pairs[:, 0]].sum()),
    )
    outputs = loss(inputs)
    total: Tensor = scale * outputs.loss
    total.backward()
    tol, expected = case["tol"], case["expected"]
    metrics = step_metrics(row_statistics(inputs, outputs), loss.per_row)
    exact = (tol["rtol"], tol["atol"])
    return (
        differs("loss", total.detach(), expected["loss"], *exact)
        or differs("gradient", leaf.grad, gradient, *exact)
        or metrics_differ(metrics, expected.get("metrics", {}), tol)
    )


def _loss_of(config: dict[str, Any]) -> tuple[Loss, float]:
    """The loss with TRL's configuration, and what to multiply it by: the weight of its preference term."""
    names, weights = config["loss_type"], config.get("loss_weights")
    names = [names] if isinstance(names, str) else list(names)
    weigh = dict(zip(names, weights or [1.0] * len(names), strict=True))
    supervised = weigh.pop("sft", 0.0)
    if len(weigh) != 1:
        raise Unsupported(f"several preference losses at once: {', '.join(weigh)}")
    [(variant, scale)] = weigh.items()
    loss = build(
        "losses",
        {
            "name": "dpo",
            "variant": variant,
            "beta": config["beta"],
            "label_smoothing": config.get("smoothing", config.get("label_smoothing", 0.0)),
            "ld_alpha": config.get("ld_alpha"),
            "sft_coef": supervised / scale,
        },
    )
    assert isinstance(loss, Loss)
    return loss, scale
