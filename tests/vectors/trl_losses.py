"""TRL's settings and batches as Rollbook's losses and their inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rollbook.components.losses.base import Loss, LossInputs, LossOutputs
from rollbook.components.losses.masks import top_entropy
from rollbook.core.ragged import Ragged
from rollbook.core.registry import build
from rollbook.rl.training.rollout_correction import Correction, correction
from rollbook.rl.training.statistics import counts_rows, row_statistics, step_metrics
from rollbook.settings.recipe_correction import RolloutCorrection
from tests.vectors.cases import KnownDifference, Unsupported, numbers

CLIPPED = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")
ONE_RATIO_PER_TOKEN = ("vespo", "gmpo")
NOT_SCALED_BY_ACCUMULATION = ("dapo", "cispo", "vespo")
"""Whose denominator is that of the whole window, also in the metric `policy_loss`."""


@dataclass(frozen=True)
class Batch:
    """A recorded batch, ready to run.

    Attributes:
        inputs: of the loss.
        entropies: the leaf that the gradient of an entropy bonus arrives in, if the case has entropies.
        correction: of rollouts, if the case has one.
    """

    inputs: LossInputs
    entropies: Tensor | None
    correction: Correction | None


def loss_of(case: dict[str, Any]) -> Loss:
    """The loss with TRL's configuration.

    Raises:
        KnownDifference: where TRL does what Rollbook means not to.
    """
    config, name = case["config"], case["config"]["loss_type"]
    by_row = config.get("importance_sampling_level", "token") == "sequence"
    beta, corrected = config.get("beta", 0.0), config.get("use_bias_correction_kl", name != "gmpo")
    if by_row and beta and corrected:
        raise KnownDifference("TRL weighs the KL of a token by the ratio of its row (trl#6586)")
    options: dict[str, Any] = {
        "name": "gspo" if name == "grpo" and by_row else name,
        "kl_coef": beta,
        "kl_bias_correction": corrected,
        "entropy_coef": config.get("entropy_coef", 0.0),
        "off_policy_threshold": config.get("off_policy_mask_threshold"),
    }
    if name != "rloo" and name not in ONE_RATIO_PER_TOKEN:
        options["ratio"] = "sequence_mean" if by_row else "token"
    loss = build("losses", options | _bounds(name, config))
    assert isinstance(loss, Loss)
    return loss


def batch_of(case: dict[str, Any], given: dict[str, Any], logprobs: Tensor) -> Batch:
    """TRL's batch. Its counts per process and generation batch become those of one optimizer step.

    Args:
        case: for its configuration and number format.
        given: the recorded batch; tensors in it are taken as they are.
        logprobs: [B, T] of the current policy, the leaf.
    """
    config, accumulation = case["config"], accumulation_of(case)
    mask = torch.tensor(given["completion_mask"], dtype=torch.bool)
    if given.get("tool_mask") is not None:
        mask &= torch.tensor(given["tool_mask"], dtype=torch.bool)
    old, ref, sampling, entropies = (
        None if given.get(name) is None else tensor_of(case, given[name])
        for name in ("old_logps", "ref_logps", "sampling_logps", "entropies")
    )
    advantages = tensor_of(case, given["advantages"])
    if entropies is not None and not entropies.requires_grad:
        entropies.requires_grad_()
    share = config.get("top_entropy_quantile", 1.0)
    chosen = mask if share == 1 or entropies is None else _top_entropy(entropies, mask, share)
    corrected = None
    if config.get("is_correction") is not None:
        before = logprobs.detach() if old is None else old
        corrected = _correction(before, sampling, mask, config["is_correction"])
    inputs = LossInputs(
        policy_logprobs=logprobs,
        advantages=advantages if advantages.ndim == 2 else advantages.unsqueeze(-1),
        loss_mask=mask,
        window_rows=len(mask) * accumulation,
        window_tokens=_window_tokens(config, given, mask),
        max_completion_tokens=config.get("max_completion_length", 1),
        old_logprobs=old,
        ref_logprobs=ref,
        sampling_logprobs=sampling,
        entropies=entropies,
        rollout_weights=None if corrected is None else on_grid(corrected.weights, logprobs),
        policy_mask=chosen,
        window_policy_tokens=int(chosen.sum()) * accumulation,
    )
    return Batch(inputs, entropies, corrected)


def metrics_of(
    case: dict[str, Any], loss: Loss, inputs: LossInputs, outputs: LossOutputs
) -> dict[str, float]:
    """Metrics of a batch under TRL's names."""
    has_token_advantages = inputs.advantages.shape[-1] > 1
    metrics = step_metrics(
        row_statistics(inputs, outputs),
        counts_rows(loss, has_token_advantages),
        further_names=loss.clip_metrics,
    )
    if loss.has_entropy_bonus:
        # TRL logs the mean over micro-batches, here they are summed.
        by_window = case["config"]["loss_type"] in NOT_SCALED_BY_ACCUMULATION
        scale = 1 if by_window else accumulation_of(case)
        metrics["policy_loss"] = outputs.policy_loss.item() * scale
        metrics["entropy_coef"] = case["config"]["entropy_coef"]
    return metrics


def accumulation_of(case: dict[str, Any]) -> int:
    """Micro-batches whose losses are summed; TRL's RLOO leaves the division to its caller, and so do evaluations."""
    config = case["config"]
    if config.get("mode", "train") != "train" or config["loss_type"] == "rloo":
        return 1
    return int(config.get("gradient_accumulation_steps", 1))


def on_grid(lists: Ragged, like: Tensor) -> Tensor:
    """Rows of full width as a tensor of the same type as `like`."""
    return torch.from_numpy(lists.padded(0)).to(like.dtype)


def full_rows(grid: Tensor) -> Ragged:
    """[B, T] as lists that all have T items; what is masked stays in."""
    return Ragged.of(list(grid.detach().numpy()), grid.detach().numpy().dtype)


def tensor_of(case: dict[str, Any], nested: Any) -> Tensor:
    """Recorded numbers in the precision of the case."""
    if isinstance(nested, Tensor):
        return nested
    return torch.from_numpy(numbers(nested)).to(getattr(torch, case["dtype"]))


def _bounds(name: str, config: dict[str, Any]) -> dict[str, Any]:
    """The fields that only this loss has."""
    low, upper = config.get("epsilon", 0.2), config.get("epsilon_high")
    high = low if upper is None else upper
    if name in CLIPPED:
        return {"clip_low": low, "clip_high": high, "delta": config.get("delta")}
    if name in ("rloo", "gmpo"):
        return {"clip_low": low, "clip_high": high}
    if name == "cispo":
        return {"cap": high}  # epsilon_high is the cap itself
    if name == "sapo":
        return _by_sign(config, {"tau": "sapo_temperature"})
    if name == "vespo":
        return _by_sign(config, {"k": "vespo_k", "lambda": "vespo_lambda"})
    raise Unsupported(f"loss {name}")


def _by_sign(config: dict[str, Any], names: dict[str, str]) -> dict[str, float]:
    """Settings that TRL chooses by the sign of the advantage, where it has them in float32."""
    return {
        f"{ours}_{sign}": float(np.float32(config[f"{theirs}_{sign}"]))
        for ours, theirs in names.items()
        for sign in ("pos", "neg")
        if f"{theirs}_{sign}" in config
    }


def _window_tokens(config: dict[str, Any], given: dict[str, Any], mask: Tensor) -> float:
    """TRL counts a generation batch over all processes; a share of it need not be whole."""
    counted = max(given.get("num_items_in_batch", int(mask.sum())), 1)
    share = 1.0
    if config.get("mode", "train") == "train":
        steps = config.get("steps_per_generation", 1)
        share = config.get("gradient_accumulation_steps", 1) / steps
    return counted / config.get("num_processes", 1) * share


def _top_entropy(entropies: Tensor, mask: Tensor, share: float) -> Tensor:
    flat = entropies.detach().numpy().reshape(-1)
    chosen: np.ndarray[Any, Any] = top_entropy(flat, mask.numpy().reshape(-1), share)
    return torch.from_numpy(chosen).view_as(mask)


def _correction(
    old: Tensor, sampling: Tensor | None, mask: Tensor, options: dict[str, Any]
) -> Correction:
    assert sampling is not None
    settings = RolloutCorrection(
        weights=options["mode"], min=options["clip_min"], max=options["clip_max"]
    )
    return correction(full_rows(old), full_rows(sampling), full_rows(mask), settings)
