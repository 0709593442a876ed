"""Runs recorded verl policy losses: PPO with dual clip, in the aggregations that Rollbook's losses have."""

from __future__ import annotations

from typing import Any

import torch

from pipeline.losses.base import Loss, LossInputs
from pipeline.registry import build
from tests.vectors.cases import Unsupported, differs, numbers

CATEGORIES = ("losses_verl",)
AGGREGATIONS = {
    "token-mean": "dapo",
    "seq-mean-token-mean": "grpo",
    "seq-mean-token-sum-norm": "dr_grpo",
}


def run_case(category: str, case: dict[str, Any]) -> str | None:
    """None if the loss gives the recorded value and gradient, else what differs.

    Raises:
        Unsupported: if no loss is meant to give them.
    """
    config, tol = case["config"], case["tol"]
    if case["impl"] != "verl.vanilla":
        raise Unsupported(f"loss {case['impl']}")
    if config["loss_agg_mode"] not in AGGREGATIONS:
        raise Unsupported(f"aggregation {config['loss_agg_mode']}")
    if config["rollout_is"] is not None:
        raise Unsupported("option rollout_is")
    logprobs = torch.from_numpy(numbers(case["inputs"]["logps"])).requires_grad_()
    loss = build(
        "losses",
        {
            "name": AGGREGATIONS[config["loss_agg_mode"]],
            "clip_low": config["clip_ratio_low"],
            "clip_high": config["clip_ratio_high"],
            "delta": config["clip_ratio_c"],  # verl's dual clip is on by default
        },
    )
    assert isinstance(loss, Loss)
    value = loss(_inputs(case, logprobs)).loss
    value.backward()
    assert logprobs.grad is not None
    found = differs("loss", value.item(), case["expected"]["loss"], tol["rtol"], tol["atol"])
    return found or differs(
        "gradient", logprobs.grad, case["expected"]["grad_logps"], tol["rtol"], tol["atol"]
    )


def _inputs(case: dict[str, Any], logprobs: torch.Tensor) -> LossInputs:
    given, batch = case["inputs"], case["config"]["global_batch_info"]
    mask = torch.from_numpy(numbers(given["response_mask"])) > 0
    tokens = batch.get("batch_num_tokens", int(mask.sum())) / batch.get("dp_size", 1)
    return LossInputs(
        policy_logprobs=logprobs,
        old_logprobs=torch.from_numpy(numbers(given["old_logps"])),
        advantages=torch.from_numpy(numbers(given["advantages"])),
        loss_mask=mask,
        window_rows=int(mask.any(-1).sum()),  # verl leaves rows without tokens out
        window_tokens=tokens,
        max_completion_tokens=batch.get("loss_scale_factor", mask.shape[1]),
    )
