"""Runs recorded masks: where completions end, which rows and tokens take part, VESPO's weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollbook.components.advantages.base import AdvantageInputs
from rollbook.components.advantages.group import Group
from rollbook.components.engines.decoding import completion_lengths
from rollbook.components.losses.base import Loss, LossInputs
from rollbook.components.losses.masks import on_policy, top_entropy
from rollbook.core.ragged import Ragged, mask_of
from rollbook.core.registry import build
from rollbook.rl.training.masks import without_truncated
from tests.vectors.cases import Unsupported, differs, numbers

CATEGORIES = ("masks", "masks_trl")


def run_case(category: str, case: dict[str, Any]) -> str | None:
    """None if the masks are the recorded ones, else what differs.

    Raises:
        Unsupported: if nothing is meant to give them.
    """
    runs = {
        "verl.get_response_mask": _run_stop_tokens,
        "trl.get_high_entropy_mask": _run_top_entropy,
        "trl.get_off_policy_mask": _run_off_policy,
        "trl.get_gamma_weights": _run_gamma_weights,
        "trl.mask_truncated": _run_truncated,
    }
    if category not in CATEGORIES or case["impl"] not in runs:
        raise Unsupported(f"{category} of {case['impl']}")
    return runs[case["impl"]](case)


def _run_stop_tokens(case: dict[str, Any]) -> str | None:
    stop = case["config"]["eos"]
    ids = np.array(case["inputs"]["response_ids"])
    lengths, _ = completion_lengths(ids, stop if isinstance(stop, list) else [stop])
    mask = np.arange(ids.shape[1]) < lengths[:, None]
    return _differs(case, "mask", mask, case["expected"]["mask"])


def _run_top_entropy(case: dict[str, Any]) -> str | None:
    entropies = numbers(case["inputs"]["entropies"])
    mask = numbers(case["inputs"]["mask"]).astype(bool)
    chosen = top_entropy(entropies.ravel(), mask.ravel(), case["config"]["top_entropy_quantile"])
    return _differs(case, "mask", chosen.reshape(mask.shape), case["expected"]["entropy_mask"])


def _run_off_policy(case: dict[str, Any]) -> str | None:
    inputs = _inputs(case["inputs"], case["inputs"]["logps"]).without_masked()
    assert inputs.sampling_logprobs is not None
    kept = on_policy(
        inputs.policy_logprobs,
        inputs.sampling_logprobs,
        inputs.advantages,
        inputs.loss_mask,
        case["config"]["off_policy_mask_threshold"],
    )
    wanted = numbers(case["expected"]["keep"])
    if wanted.shape != kept.shape:  # one per row
        return _differs(case, "rows", kept.all(-1), wanted.reshape(-1).tolist())
    return _differs(case, "tokens", kept[inputs.loss_mask], wanted[inputs.loss_mask].tolist())


def _run_gamma_weights(case: dict[str, Any]) -> str | None:
    """The weights that `vespo` reports of each row."""
    inputs = _inputs(case["inputs"], case["inputs"]["log_ratio"])
    zeros = torch.zeros_like(inputs.policy_logprobs)
    loss = build("losses", {"name": "vespo", **case["config"]})
    assert isinstance(loss, Loss)
    weights = loss(replace(inputs, old_logprobs=zeros)).row_metrics["vespo/phi_seq_mean"]
    return _differs(case, "weights", weights, case["expected"]["phi"])


def _run_truncated(case: dict[str, Any]) -> str | None:
    """Which tokens are left to train on, how many, and advantages that do not notice."""
    config, given, expected = case["config"], case["inputs"], case["expected"]
    completion = mask_of(np.array(given["lengths"]))
    tools = given.get("tool_mask")
    trained = completion if tools is None else completion & numbers(tools).astype(bool)
    finished = np.array(given["ends_with_eos"]) | (not config["mask_truncated_completions"])
    kept = without_truncated(
        Ragged(trained[completion], np.array(given["lengths"])), finished
    ).padded(False)
    wanted = numbers(expected["completion_mask"]) * numbers(expected.get("tool_mask", 1))
    groups = np.arange(len(kept)) // config["num_generations"]
    advantages = _advantages(config, numbers(given["rewards"]), groups, kept)
    return (
        _differs(case, "mask", kept, wanted.tolist())
        or _differs(case, "tokens", kept.sum(), expected["num_items_in_batch"])
        or _differs(case, "advantages", advantages, expected["advantages"])
    )


def _advantages(
    config: dict[str, Any],
    rewards: NDArray[np.float64],
    groups: NDArray[np.int64],
    loss_mask: NDArray[np.bool_],
) -> NDArray[np.float64]:
    estimator = Group(scale=config.get("scale_rewards", "group"), std_ddof=1, eps=1e-4)
    inputs = AdvantageInputs(
        rewards=rewards,
        groups=groups,
        components=rewards[:, None],
        weights=np.ones(1),
        loss_mask=Ragged(loss_mask.ravel(), np.full(len(loss_mask), loss_mask.shape[1])),
    )
    return estimator(inputs).advantages


def _inputs(given: dict[str, Any], logprobs: Any) -> LossInputs:
    """What a loss would see of the case; `advantages` are one per row or per token."""
    mask = _tensor(given["mask"]).bool()
    advantages = _tensor(given["advantages"])
    sampling, weights = given.get("sampling_logps"), given.get("importance_sampling_ratio")
    return LossInputs(
        policy_logprobs=_tensor(logprobs),
        advantages=advantages if advantages.ndim == 2 else advantages[:, None],
        loss_mask=mask,
        window_rows=len(mask),
        window_tokens=max(int(mask.sum()), 1),
        max_completion_tokens=mask.shape[1],
        sampling_logprobs=None if sampling is None else _tensor(sampling),
        rollout_weights=None if weights is None else _tensor(weights),
    )


def _tensor(nested: Any) -> Tensor:
    return torch.from_numpy(numbers(nested))


def _differs(case: dict[str, Any], name: str, got: Any, expected: Any) -> str | None:
    return differs(name, got, expected, case["tol"]["rtol"], case["tol"]["atol"])
