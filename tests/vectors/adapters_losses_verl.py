"""Runs recorded verl policy losses through Rollbook's losses, in all of verl's aggregations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rollbook.components.losses.base import Loss, LossInputs, LossOutputs
from rollbook.components.losses.cispo import Cispo
from rollbook.components.losses.clip_cov import ClipCov
from rollbook.core.registry import build
from rollbook.rl.training.rollout_correction import Correction
from tests.vectors.adapters_rollout_correction import verl_correction
from tests.vectors.cases import KnownDifference, Unsupported, differs, metrics_differ, numbers
from tests.vectors.trl_losses import full_rows, on_grid

CATEGORIES = ("losses_verl",)
AGGREGATIONS = {
    "token-mean": "token_mean",
    "token-sum": "token_sum",
    "seq-mean-token-sum": "row_sum",
    "seq-mean-token-sum-norm": "constant_length",
    "seq-mean-token-mean": "row_mean",
}
FORCED = {"gspo": "row_mean", "sapo": "row_mean", "geo_mean": "row_mean"}
"""Modes that do not listen to `loss_agg_mode`."""


def run_case(category: str, case: dict[str, Any]) -> str | None:
    """None if the loss gives the recorded value, gradient and metrics, else what differs.

    Raises:
        Unsupported: if no loss is meant to give them.
    """
    config, expected, tol = _flat(case["config"]), case["expected"], case["tol"]
    logprobs = torch.from_numpy(numbers(case["inputs"]["logps"])).requires_grad_()
    mask = torch.from_numpy(numbers(case["inputs"]["response_mask"])) > 0
    found = _corrected(config, case["inputs"], logprobs.detach(), mask)
    loss, weights = _loss_of(config), None
    if found is not None:
        mask = on_grid(found.kept, mask)
        weights = None if loss.name == "reinforce" else on_grid(found.weights, logprobs)
        if config["loss_mode"] == "bypass_mode" and config["loss_type"] == "ppo_clip":
            weights = None  # the ratio is against the engine already
    inputs = _inputs(config, case["inputs"], logprobs, mask, weights, loss)
    _refuse_draws(loss, inputs)
    outputs = loss(inputs)
    # A sum over tokens is multiplied by what data-parallel training divides gradients by.
    summed = loss.aggregation == "token_sum"
    value = outputs.loss * config["global_batch_info"].get("dp_size", 1) if summed else outputs.loss
    value.backward()
    assert logprobs.grad is not None
    problem = differs("loss", value.item(), expected["loss"], tol["rtol"], tol["atol"])
    if not tol.get("skip_grad"):
        problem = problem or differs(
            "gradient", logprobs.grad, expected["grad_logps"], tol["rtol"], tol["atol"]
        )
    wanted = expected.get("rollout_is_weights")
    if found is not None and wanted is not None:
        got = (found.weights.padded(0) * mask.numpy()).tolist()
        problem = problem or differs("weights", got, wanted, tol["rtol"], tol["atol"])
    metrics = _metrics(config, loss, inputs, outputs) | (found.metrics if found else {})
    return problem or metrics_differ(metrics, expected.get("metrics", {}), tol)


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    """The options of nested settings beside the others, with verl's defaults where a case leaves them out."""
    clip = config.get("clip_ratio", 0.2)
    bypass = config.get("rollout_correction") or {}
    flat = {
        "loss_mode": "vanilla",
        "loss_agg_mode": "token-mean",
        "loss_type": "ppo_clip",
        "global_batch_info": {},
        **config,
        **(config.get("policy_loss") or {}),
        **(config.get("rollout_is") or {}),
        **bypass,
    }
    if not isinstance(flat.get("rollout_is"), str):
        flat["rollout_is"] = None
    for side in ("clip_ratio_low", "clip_ratio_high"):
        flat[side] = clip if flat.get(side) is None else flat[side]
    return flat


def _loss_of(config: dict[str, Any]) -> Loss:
    """The loss of a mode; those that clip have verl's dual clip as `delta`.

    Raises:
        Unsupported: for a mode or aggregation that is not there.
    """
    mode, aggregation = config["loss_mode"], config["loss_agg_mode"]
    if mode == "bypass_mode":
        mode = "vanilla" if config["loss_type"] == "ppo_clip" else "reinforce"
    if mode not in OPTIONS or aggregation not in AGGREGATIONS:
        raise Unsupported(f"verl's {mode} with {aggregation}")
    loss = build(
        "losses",
        {
            "aggregation": FORCED.get(mode, AGGREGATIONS[aggregation]),
            "count_empty_rows": mode == "geo_mean",  # a plain mean; elsewhere they are left out
            **OPTIONS[mode](config),
        },
    )
    assert isinstance(loss, Loss)
    return loss


def _clip(config: dict[str, Any]) -> dict[str, Any]:
    return {"clip_low": config["clip_ratio_low"], "clip_high": config["clip_ratio_high"]}


def _vanilla(config: dict[str, Any]) -> dict[str, Any]:
    cap = config.get("clip_ratio_c", 3.0)
    if cap < 1 + config["clip_ratio_high"]:
        raise KnownDifference("a delta within the clip range caps all advantages, as in TRL")
    return {"name": "grpo", **_clip(config), "delta": cap}


def _cispo(config: dict[str, Any]) -> dict[str, Any]:
    low, high = config["clip_ratio_low"], config["clip_ratio_high"]
    return {"name": "cispo", "floor": max(1 - low, 0.0), "cap": 1 + high}


def _clip_cov(config: dict[str, Any]) -> dict[str, Any]:
    return {"name": "clip_cov", **_clip(config)} | _given(
        config, drop_share="clip_cov_ratio", cov_low="clip_cov_lb", cov_high="clip_cov_ub"
    )


def _dppo(config: dict[str, Any]) -> dict[str, Any]:
    divergence = config["loss_mode"].removeprefix("dppo_")
    cap = config.get("clip_ratio_c", 20.0)
    return {"name": "dppo", "divergence": divergence, **_clip(config), "cap": cap}


def _reinforce(config: dict[str, Any]) -> dict[str, Any]:
    """A weight that is only capped is the ratio of `reinforce`; any other is a rollout weight on `gpg`."""
    threshold = config.get("rollout_is_threshold", 2.0)
    plain = not config.get("rollout_is_batch_normalize") and "_" not in str(threshold)
    if config["rollout_is"] is None or threshold is None or not plain:
        return {"name": "gpg"}
    level = {"token": "token", "sequence": "sequence_product"}[config["rollout_is"]]
    return {"name": "reinforce", "ratio": level, "cap": float(threshold)}


def _given(config: dict[str, Any], **names: str) -> dict[str, Any]:
    """Options of a case under our names; those it leaves out keep our defaults."""
    return {
        ours: config[theirs] for ours, theirs in names.items() if config.get(theirs) is not None
    }


OPTIONS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "vanilla": _vanilla,
    "gspo": lambda config: {"name": "gspo", "ratio": "sequence_mean_token", **_clip(config)},
    "sapo": lambda config: {"name": "sapo", **_given(config, tau_pos="tau_pos", tau_neg="tau_neg")},
    "cispo": _cispo,
    "geo_mean": lambda config: {"name": "gmpo", **_clip(config)},
    "gpg": lambda _: {"name": "gpg"},
    "clip_cov": _clip_cov,
    "kl_cov": lambda config: {
        "name": "kl_cov",
        **_given(config, penalty_share="kl_cov_ratio", penalty="ppo_kl_coef"),
    },
    "dppo_tv": _dppo,
    "dppo_kl": _dppo,
    "reinforce": _reinforce,
}
"""Our loss and its fields by `loss_mode`."""


def _corrected(
    config: dict[str, Any], given: dict[str, Any], policy: Tensor, mask: Tensor
) -> Correction | None:
    """Weights and rejection, if the case has them; in bypass mode between the current policy and the engine."""
    if config["loss_mode"] == "bypass_mode":
        trainer, engine = policy, torch.from_numpy(numbers(given["old_logps"]))
    elif given.get("sampling_logps") is not None:
        trainer, engine = (
            torch.from_numpy(numbers(given[name])) for name in ("old_logps", "sampling_logps")
        )
    else:
        return None
    return verl_correction(config, full_rows(trainer), full_rows(engine), full_rows(mask))


def _inputs(
    config: dict[str, Any],
    given: dict[str, Any],
    logprobs: Tensor,
    mask: Tensor,
    weights: Tensor | None,
    loss: Loss,
) -> LossInputs:
    """Counts that a case gives for the global batch are shared out among the data-parallel ranks."""
    batch = config["global_batch_info"]
    rows = len(mask) if loss.count_empty_rows else int(mask.any(-1).sum())
    ranks = batch.get("dp_size", 1)
    advantages = torch.from_numpy(numbers(given["advantages"]))
    if loss.count_empty_rows is False and batch.get("global_batch_size") is not None:
        rows = batch["global_batch_size"] / ranks
    tokens = batch.get("batch_num_tokens")
    width = batch.get("loss_scale_factor")
    return LossInputs(
        policy_logprobs=logprobs,
        old_logprobs=torch.from_numpy(numbers(given["old_logps"])),
        advantages=advantages if advantages.ndim == 2 else advantages.unsqueeze(-1),
        loss_mask=mask,
        window_rows=rows,
        window_tokens=int(mask.sum()) if tokens is None else tokens / ranks,
        max_completion_tokens=mask.shape[1] if width is None else width,
        rollout_weights=weights,
    )


def _refuse_draws(loss: Loss, inputs: LossInputs) -> None:
    """Raises KnownDifference where verl draws tokens at random."""
    if isinstance(loss, ClipCov):
        everything = loss.model_copy(update={"drop_share": 1.0})
        candidates = everything(inputs).row_metrics["clip_cov/dropped_tokens"].sum()
        limit = max(int(loss.drop_share * int(inputs.loss_mask.sum())), 1)
        if candidates > limit:
            raise KnownDifference("verl draws the tokens that Clip-Cov drops at random")


def _metrics(
    config: dict[str, Any], loss: Loss, inputs: LossInputs, outputs: LossOutputs
) -> dict[str, float]:
    """verl's metrics, all means over tokens, from what the loss returns."""
    mask, ratio = inputs.loss_mask, outputs.ratio
    advantages = inputs.advantages.expand_as(mask)
    log_ratio = ratio.log()
    if loss.ratio == "sequence_product":  # of the whole row, on each of its tokens
        log_ratio = log_ratio / mask.sum(-1, keepdim=True).clamp(min=1)

    def share(flags: Tensor) -> float:
        return (flags & mask).sum().item() / max(int(mask.sum()), 1)

    clipped = outputs.clipped_low | outputs.clipped_high
    lower, mode = mask.new_zeros(mask.shape), config["loss_mode"]
    if isinstance(loss, Cispo):  # whatever the sign of the advantage
        clipped = (ratio > loss.cap) | (ratio < loss.floor)
    if mode in ("vanilla", "bypass_mode"):
        lower = (ratio > config.get("clip_ratio_c", 3.0)) & (advantages < 0)
    elif mode in ("dppo_tv", "dppo_kl"):
        lower = (ratio > config.get("clip_ratio_c", 20.0)) & ~clipped
    elif mode == "geo_mean":  # outside on either side, told apart by the sign of the advantage
        outside = (log_ratio > config["clip_ratio_high"]) | (log_ratio < -config["clip_ratio_low"])
        clipped, lower = outside & (advantages > 0), outside & (advantages < 0)
    moved = log_ratio.abs() if mode == "kl_cov" else -log_ratio
    tokens = max(int(mask.sum()), 1)
    metrics = {
        "actor/pg_clipfrac": share(clipped),
        "actor/pg_clipfrac_lower": share(lower),
        "actor/ppo_kl": moved.where(mask, 0.0).sum().item() / tokens,
    }
    if isinstance(loss, ClipCov):  # only what the covariance drops
        dropped = outputs.row_metrics["clip_cov/dropped_tokens"].sum().item()
        metrics["actor/pg_clipfrac"] = dropped / tokens
    return metrics
