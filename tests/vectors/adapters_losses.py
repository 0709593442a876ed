"""Runs recorded loss, KL and log-prob cases through Rollbook's losses, translating the libraries' option names."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pipeline.losses.base import Loss, LossInputs, LossOutputs
from pipeline.losses.kl import kl_estimate
from pipeline.registry import build, menu
from pipeline.training.logprobs import selected_logprobs
from pipeline.training.statistics import row_statistics, step_metrics
from tests.vectors.cases import Unsupported, differs, metrics_differ, numbers

CATEGORIES = (
    "losses_trl",
    "losses_trl_microbatch",
    "losses_trl_multistep",
    "end_to_end",
    "logps",
    "kl",
)
MODIFIERS = {
    "top_entropy_quantile": (1.0,),
    "off_policy_mask_threshold": (None,),
    "entropy_coef": (0.0,),
    "is_correction": (None,),
}
"""Options with the values that mean off."""


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
        "logps": _run_logprobs,
        "kl": _run_kl,
    }
    if category not in runs:
        raise Unsupported(f"category {category}")
    return runs[category](case)


def _run_loss(case: dict[str, Any]) -> str | None:
    loss, given = _loss_of(case), case["inputs"]
    logprobs = _tensor(case, given["logps"]).requires_grad_()
    inputs = _inputs(case, given, logprobs)
    outputs = loss(inputs)
    outputs.loss.backward()
    return _compare(case, outputs, logprobs, "grad_logps") or metrics_differ(
        step_metrics(row_statistics(inputs, outputs), loss.per_row),
        case["expected"]["metrics"],
        case["tol"],
    )


def _run_micro_batches(case: dict[str, Any]) -> str | None:
    """The micro-batches of one accumulation window: each one's loss and gradient, and the sum."""
    loss, expected, total = _loss_of(case), case["expected"], 0.0
    for place, part in enumerate(case["inputs"]["micro_batches"]):
        logprobs = _tensor(case, part["logps"]).requires_grad_()
        given = {**part, "num_items_in_batch": case["inputs"]["num_items_in_batch"]}
        outputs = loss(_inputs(case, given, logprobs))
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
    loss, given = _loss_of(case), case["inputs"]
    logprobs = _tensor(case, given["old_logps"]).requires_grad_()
    for place, expected in enumerate(case["expected"]["steps"]):
        inputs = _inputs(case, given, logprobs)
        outputs = loss(inputs)
        (gradient,) = torch.autograd.grad(outputs.loss, logprobs)
        found = step_metrics(row_statistics(inputs, outputs), loss.per_row)
        wanted = {name: value for name, value in expected.items() if value is not None}
        text = _differs(case, f"loss {place}", outputs.loss, wanted.pop("loss"))
        if text := text or metrics_differ(found, wanted, case["tol"]):
            return text
        logprobs = (logprobs - given["sgd_lr"] * gradient).detach().requires_grad_()
    return _differs(case, "final log-probs", logprobs, case["expected"]["final_logps"])


def _run_from_logits(case: dict[str, Any]) -> str | None:
    """Logits to log-probs, loss and back: the gradient arrives in the logits."""
    loss, given, temperature = _loss_of(case), case["inputs"], case["config"]["temperature"]
    ids = torch.tensor(given["tokens"])
    logits = _tensor(case, given["logits"]).requires_grad_()
    logprobs, entropies = selected_logprobs(logits, ids, temperature)
    frozen = {
        f"{name}_logps": selected_logprobs(
            _tensor(case, given[f"{name}_logits"]), ids, temperature
        )[0]
        for name in ("old", "ref")
        if given.get(f"{name}_logits") is not None
    }
    inputs = _inputs(case, {**given, **frozen, "entropies": entropies}, logprobs)
    outputs = loss(inputs)
    outputs.loss.backward()
    return _compare(case, outputs, logits, "grad_logits") or metrics_differ(
        step_metrics(row_statistics(inputs, outputs), loss.per_row),
        case["expected"]["metrics"],
        case["tol"],
    )


def _run_logprobs(case: dict[str, Any]) -> str | None:
    given, expected = case["inputs"], case["expected"]
    logits = _tensor(case, given["logits"]).requires_grad_()
    logprobs, entropies = selected_logprobs(
        logits, torch.tensor(given["tokens"]), case["config"]["temperature"], entropy_gradient=True
    )
    weighted = _tensor(case, given["w_logps"]) * logprobs
    (weighted + _tensor(case, given["w_entropy"]) * entropies).sum().backward()
    return (
        _differs(case, "log-probs", logprobs, expected["logps"])
        or _differs(case, "entropies", entropies, expected["entropies"])
        or _differs(case, "gradient", logits.grad, expected["grad_logits"])
    )


def _run_kl(case: dict[str, Any]) -> str | None:
    for kind in case["config"]["kinds"]:
        logprobs = _tensor(case, case["inputs"]["logps"]).requires_grad_()
        value = kl_estimate(kind, logprobs, _tensor(case, case["inputs"]["ref_logps"]))
        value.sum().backward()
        wanted = case["expected"][kind]
        found = _differs(case, kind, value, wanted["value"])
        if found := found or _differs(
            case, f"gradient of {kind}", logprobs.grad, wanted["grad_logps"]
        ):
            return found
    return None


def _loss_of(case: dict[str, Any]) -> Loss:
    """The Rollbook loss with a TRL configuration.

    Raises:
        Unsupported: for a loss or an option that is not there, and where TRL does what Rollbook means not to.
    """
    config = case["config"]
    if case["impl"] != "trl.grpo" or config["loss_type"] not in menu("losses"):
        raise Unsupported(f"loss {config['loss_type']}")
    for option, off in MODIFIERS.items():
        if config.get(option, off[0]) not in off:
            raise Unsupported(f"option {option}")
    by_row = config["importance_sampling_level"] == "sequence"
    if by_row and config["beta"] and config["use_bias_correction_kl"]:
        raise Unsupported("TRL weighs the KL of a token by the ratio of its row (trl#6586)")
    epsilon, upper = config["epsilon"], config.get("epsilon_high")
    loss = build(
        "losses",
        {
            "name": config["loss_type"],
            "ratio": "sequence_mean" if by_row else "token",
            "kl_coef": config["beta"],
            "kl_bias_correction": config["use_bias_correction_kl"],
            "clip_low": epsilon,
            "clip_high": epsilon if upper is None else upper,
            "delta": config.get("delta"),
        },
    )
    assert isinstance(loss, Loss)
    return loss


def _inputs(case: dict[str, Any], given: dict[str, Any], logprobs: Tensor) -> LossInputs:
    """TRL's batch as loss inputs. Its per-process, per-generation-batch counts become those of one optimizer step."""
    config = case["config"]
    mask = torch.tensor(given["completion_mask"], dtype=torch.bool)
    if given.get("tool_mask") is not None:
        mask &= torch.tensor(given["tool_mask"], dtype=torch.bool)
    advantages = _tensor(case, given["advantages"])
    training = config.get("mode", "train") == "train"
    accumulation = config.get("gradient_accumulation_steps", 1) if training else 1
    share = accumulation / config.get("steps_per_generation", 1) if training else 1.0
    tokens = max(given["num_items_in_batch"], 1) / config.get("num_processes", 1) * share
    return LossInputs(
        policy_logprobs=logprobs,
        advantages=advantages if advantages.ndim == 2 else advantages.unsqueeze(-1),
        loss_mask=mask,
        window_rows=len(mask) * accumulation,
        window_tokens=tokens,  # a share of a window need not be whole
        max_completion_tokens=config.get("max_completion_length", 1),
        **{
            ours: _tensor(case, given[theirs])
            for ours, theirs in {
                "old_logprobs": "old_logps",
                "ref_logprobs": "ref_logps",
                "entropies": "entropies",
            }.items()
            if given.get(theirs) is not None
        },
    )


def _tensor(case: dict[str, Any], nested: Any) -> Tensor:
    if isinstance(nested, Tensor):
        return nested.detach()
    return torch.from_numpy(numbers(nested)).to(getattr(torch, case["dtype"]))


def _compare(case: dict[str, Any], outputs: LossOutputs, leaf: Tensor, gradient: str) -> str | None:
    expected = case["expected"]
    found = _differs(case, "loss", outputs.loss, expected["loss"])
    if found or case["tol"].get("skip_grad"):
        return found
    return _differs(case, "gradient", leaf.grad, expected[gradient])


def _differs(case: dict[str, Any], name: str, got: Tensor | None, expected: Any) -> str | None:
    assert got is not None
    tol = case["tol"]
    return differs(name, got.detach().numpy(), expected, tol["rtol"], tol["atol"])
