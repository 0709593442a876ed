"""Loss inputs from plain lists, float64."""

from __future__ import annotations

from typing import Any

import torch

from rollbook.components.losses.base import LossInputs


def loss_inputs(
    policy: list[list[float]],
    advantages: list[list[float]],
    mask: list[list[int]] | None = None,
    **options: Any,
) -> LossInputs:
    """Rows of one optimizer step; further options by name, lists of log-probs become tensors."""
    logprobs = torch.tensor(policy, dtype=torch.float64, requires_grad=True)
    loss_mask = (
        torch.ones_like(logprobs, dtype=torch.bool)
        if mask is None
        else torch.tensor(mask, dtype=torch.bool)
    )
    tensors = {
        name: torch.tensor(value, dtype=torch.float64) if isinstance(value, list) else value
        for name, value in options.items()
    }
    return LossInputs(
        **{
            "policy_logprobs": logprobs,
            "advantages": torch.tensor(advantages, dtype=torch.float64),
            "loss_mask": loss_mask,
            "window_rows": len(policy),
            "window_tokens": int(loss_mask.sum()),
            "max_completion_tokens": 10,
            **tensors,
        }
    )


def gradient(inputs: LossInputs, loss: torch.Tensor) -> list[list[float]]:
    """d loss / d policy_logprobs."""
    (found,) = torch.autograd.grad(loss, inputs.policy_logprobs)
    listed: list[list[float]] = found.tolist()
    return listed
