"""Runs recorded loss, KL and log-prob cases of TRL through Rollbook's losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rollbook.components.losses.kl import kl_estimate
from rollbook.rl.training.controllers import Controllers
from rollbook.rl.training.logprobs import selected_logprobs
from tests.vectors.cases import differs, metrics_differ, numbers
from tests.vectors.trl_losses import Batch, batch_of, loss_of, metrics_of, tensor_of

CATEGORIES = (
    "losses_trl",
    "losses_trl_microbatch",
    "losses_trl_multistep",
    "end_to_end",
    "entropy_controller",
    "logps",
    "kl",
)


def run_case(category: str, case: dict[str, Any]) -> str | None:
    """None if the losses give the recorded numbers, else what differs.

    Raises:
        Unsupported: if no loss is meant to give them.
    """
    runs = {
        "losses_trl": _run_loss,
        "losses_trl_microbatch": _run_micro_batches,
        "losses_trl_multistep": _run_steps,
        "end_to_end": _run_from_logits,
        "entropy_controller": _run_controller,
        "logps": _run_logprobs,
        "kl": _run_kl,
    }
    return runs[category](case)


def _run_loss(case: dict[str, Any]) -> str | None:
    logprobs = tensor_of(case, case["inputs"]["logps"]).requires_grad_()
    batch = batch_of(case, case["inputs"], logprobs)
    found = _run_batch(case, batch, logprobs, "grad_logps")
    wanted = case["expected"].get("grad_entropies")
    if found is None and wanted is not None:
        assert batch.entropies is not None
        found = _differs(case, "gradient in the entropies", batch.entropies.grad, wanted)
    return found or _correction_differs(case, batch)


def _run_from_logits(case: dict[str, Any]) -> str | None:
    """Logits to log-probs, loss and back: the gradient arrives in the logits."""
    given, temperature = case["inputs"], case["config"]["temperature"]
    ids = torch.tensor(given["tokens"])
    logits = tensor_of(case, given["logits"]).requires_grad_()
    logprobs, entropies = selected_logprobs(logits, ids, temperature, entropy_gradient=True)
    frozen = {
        f"{name}_logps": selected_logprobs(
            tensor_of(case, given[f"{name}_logits"]), ids, temperature
        )[0]
        for name in ("old", "ref", "sampling")
        if given.get(f"{name}_logits") is not None
    }
    batch = batch_of(case, {**given, **frozen, "entropies": entropies}, logprobs)
    return _run_batch(case, batch, logits, "grad_logits")


def _run_batch(case: dict[str, Any], batch: Batch, leaf: Tensor, gradient: str) -> str | None:
    """Loss, gradient in the leaf and metrics."""
    loss, expected = loss_of(case), case["expected"]
    outputs = loss(batch.inputs)
    outputs.loss.backward()
    found = _differs(case, "loss", outputs.loss, expected["loss"])
    if found is None and not case["tol"].get("skip_grad"):
        found = _differs(case, "gradient", leaf.grad, expected[gradient])
    metrics = metrics_of(case, loss, batch.inputs, outputs)
    return found or metrics_differ(metrics, expected.get("metrics", {}), case["tol"])


def _correction_differs(case: dict[str, Any], batch: Batch) -> str | None:
    """Rollout weights, one per token or one per row, and their metrics."""
    wanted = case["expected"].get("importance_sampling_ratio")
    if wanted is None:
        return None
    assert batch.correction is not None
    mask = batch.inputs.loss_mask.numpy()
    weights = np.broadcast_to(numbers(wanted), mask.shape)
    got, tol = batch.correction.weights.padded(1), case["tol"]
    found = differs("weights", got[mask], weights[mask].tolist(), tol["rtol"], tol["atol"])
    return found or metrics_differ(
        batch.correction.metrics, case["expected"].get("is_metrics", {}), tol
    )


def _run_micro_batches(case: dict[str, Any]) -> str | None:
    """The micro-batches of one accumulation window: each one's loss and gradient, and the sum."""
    loss, expected, total = loss_of(case), case["expected"], 0.0
    for place, part in enumerate(case["inputs"]["micro_batches"]):
        logprobs = tensor_of(case, part["logps"]).requires_grad_()
        shared = {name: value for name, value in case["inputs"].items() if name != "micro_batches"}
        outputs = loss(batch_of(case, {**shared, **part}, logprobs).inputs)
        outputs.loss.backward()
        total += outputs.loss.item()
        found = _differs(case, f"loss {place}", outputs.loss, expected["losses"][place])
        found = found or _differs(
            case, f"gradient {place}", logprobs.grad, expected["grads"][place]
        )
        if found:
            return found
    return _differs(
        case, "sum of losses", torch.tensor(total, dtype=torch.float64), expected["loss_sum"]
    )


def _run_steps(case: dict[str, Any]) -> str | None:
    """Several steps of plain gradient descent on the log-probs themselves, starting on-policy."""
    loss, given = loss_of(case), case["inputs"]
    logprobs = tensor_of(case, given["old_logps"]).requires_grad_()
    for place, expected in enumerate(case["expected"]["steps"]):
        inputs = batch_of(case, given, logprobs).inputs
        outputs = loss(inputs)
        (gradient,) = torch.autograd.grad(outputs.loss, logprobs)
        wanted = {name: value for name, value in expected.items() if value is not None}
        found = _differs(case, f"loss {place}", outputs.loss, wanted.pop("loss"))
        metrics = metrics_of(case, loss, inputs, outputs)
        if found := found or metrics_differ(metrics, wanted, case["tol"]):
            return found
        logprobs = (logprobs - given["sgd_lr"] * gradient).detach().requires_grad_()
    return _differs(case, "final log-probs", logprobs, case["expected"]["final_logps"])


def _run_controller(case: dict[str, Any]) -> str | None:
    """The same batch again and again, with the entropy the case dictates; the coefficient follows its target."""
    config, given = case["config"], case["inputs"]
    adaptive = {
        "start": config["entropy_coef"],
        "target": config["entropy_target"],
        "delta": config["entropy_coef_delta"],
        "min": config["entropy_coef_min"],
        "max": config["entropy_coef_max"],
    }
    loss = loss_of({**case, "config": {**config, "entropy_coef": adaptive}})
    controllers, logprobs = Controllers(loss, 0.0, {}), tensor_of(case, given["logps"])
    for place, wanted in enumerate(case["expected"]["steps"]):
        entropies = torch.full_like(logprobs, given["entropy_per_step"][place])
        inputs = batch_of(case, {**given, "entropies": entropies}, logprobs).inputs
        outputs = controllers.loss()(inputs)
        metrics = metrics_of(case, controllers.loss(), inputs, outputs)
        controllers.after_step(metrics["entropy"])
        got = {
            "mean_entropy": metrics["entropy"],
            "loss": outputs.loss.item(),
            "policy_loss": outputs.policy_loss.item(),
            "entropy_coef_after": controllers.state()["entropy_coef"],
        }
        for name, value in wanted.items():
            found = differs(
                f"{name} of step {place}",
                got[name],
                value,
                case["tol"]["rtol"],
                case["tol"]["atol"],
            )
            if found:
                return found
    return None


def _run_logprobs(case: dict[str, Any]) -> str | None:
    given, expected = case["inputs"], case["expected"]
    logits = tensor_of(case, given["logits"]).requires_grad_()
    logprobs, entropies = selected_logprobs(
        logits, torch.tensor(given["tokens"]), case["config"]["temperature"], entropy_gradient=True
    )
    weighted = tensor_of(case, given["w_logps"]) * logprobs
    (weighted + tensor_of(case, given["w_entropy"]) * entropies).sum().backward()
    return (
        _differs(case, "log-probs", logprobs, expected["logps"])
        or _differs(case, "entropies", entropies, expected["entropies"])
        or _differs(case, "gradient", logits.grad, expected["grad_logits"])
    )


def _run_kl(case: dict[str, Any]) -> str | None:
    for kind in case["config"]["kinds"]:
        logprobs = tensor_of(case, case["inputs"]["logps"]).requires_grad_()
        value = kl_estimate(kind, logprobs, tensor_of(case, case["inputs"]["ref_logps"]))
        value.sum().backward()
        wanted = case["expected"][kind]
        found = _differs(case, kind, value, wanted["value"])
        if found := found or _differs(
            case, f"gradient of {kind}", logprobs.grad, wanted["grad_logps"]
        ):
            return found
    return None


def _differs(case: dict[str, Any], name: str, got: Tensor | None, expected: Any) -> str | None:
    assert got is not None
    tol = case["tol"]
    return differs(name, got.detach().numpy(), expected, tol["rtol"], tol["atol"])
