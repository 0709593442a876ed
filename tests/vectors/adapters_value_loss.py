"""Runs recorded cases of verl's value loss."""

from __future__ import annotations

from typing import Any

import torch

from rollbook.components.critics.value_loss import ValueInputs, value_loss
from rollbook.core.registry import build
from tests.vectors.adapters_losses_verl import AGGREGATIONS
from tests.vectors.cases import Unsupported, differs
from tests.vectors.trl_losses import tensor_of

CATEGORIES = ("value_loss",)


def run_case(_category: str, case: dict[str, Any]) -> str | None:
    """None if the value loss gives the recorded value, gradient and share of clipped tokens, else what differs.

    Raises:
        Unsupported: for an implementation or an aggregation that is not known.
    """
    config, given, expected, tol = (case[name] for name in ("config", "inputs", "expected", "tol"))
    if case["impl"] != "verl.value_loss" or config["loss_agg_mode"] not in AGGREGATIONS:
        raise Unsupported(f"implementation {case['impl']}, {config['loss_agg_mode']}")
    critic: Any = build(
        "critics",
        {
            "name": "network",
            "value_clip": config["cliprange_value"],
            "aggregation": AGGREGATIONS[config["loss_agg_mode"]],
        },
    )
    mask = tensor_of(case, given["response_mask"]).bool()
    values = tensor_of(case, given["vpreds"]).requires_grad_()
    outputs = value_loss(
        ValueInputs(
            values=values,
            old_values=tensor_of(case, given["values"]),
            returns=tensor_of(case, given["returns"]),
            loss_mask=mask,
            window_rows=int(mask.any(-1).sum()),
            window_tokens=int(mask.sum()),
            max_completion_tokens=mask.shape[1],
        ),
        critic.value_clip,
        critic.aggregation,
    )
    outputs.loss.backward()
    assert values.grad is not None
    return (
        differs("loss", outputs.loss.detach(), expected["loss"], tol["rtol"], tol["atol"])
        or differs("gradient", values.grad, expected["grad_vpreds"], tol["rtol"], tol["atol"])
        # verl adds 1e-8 to the count of tokens.
        or differs(
            "clipped share",
            torch.sum(outputs.clipped) / mask.sum(),
            expected["vf_clipfrac"],
            max(tol["rtol"], 1e-6),
            tol["atol"],
        )
    )
