"""Rollout correction, masks and rewards recorded from TRL and verl."""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Any

import pytest

from tests.vectors import adapters_masks, adapters_rewards, adapters_rollout_correction
from tests.vectors.cases import load_cases

ADAPTERS: dict[str, Any] = {
    category: adapter
    for adapter in (adapters_masks, adapters_rewards, adapters_rollout_correction)
    for category in adapter.CATEGORIES
}
CASES = {
    f"{category}/{case['id']}": (category, case)
    for category in ADAPTERS
    for case in load_cases(category)
}


def outcome(category: str, case: dict[str, Any]) -> str | None:
    result: str | None = ADAPTERS[category].run_case(category, case)
    return result


@pytest.mark.parametrize("name", CASES)
def test_recorded_case(name: str) -> None:
    assert outcome(*CASES[name]) is None


@pytest.mark.parametrize("name", [name for name in CASES if "correction" in name])
def test_log_probs_that_were_swapped_are_noticed(name: str) -> None:
    category, case = CASES[name]
    given = case["inputs"]
    swapped = {"old_logps": given["sampling_logps"], "sampling_logps": given["old_logps"]}
    assert outcome(category, {**case, "inputs": {**given, **swapped}}) is not None


def verl_case(**config: Any) -> dict[str, Any]:
    """One row of ratios 2, ½ and 4 and one of 8, under other options."""
    case = deepcopy(CASES["rollout_correction_verl/corr-metrics-only"][1])
    case["config"] = config
    case["inputs"] = {
        "old_logps": [[-1.0, -1.0, -1.0], [-1.0, -1.0, -1.0]],
        "sampling_logps": [
            [-1 - math.log(ratio) for ratio in row] for row in ([2, 0.5, 4], [8, 1, 1])
        ],
        "response_mask": [[1, 1, 1], [1, 0, 0]],
    }
    return case


@pytest.mark.parametrize(
    ("config", "weights", "mask"),
    [
        ({"rollout_is": "token"}, [[2, 0.5, 2], [2, 0, 0]], None),
        ({"rollout_is": "token", "rollout_is_threshold": "3"}, [[2, 0.5, 3], [3, 0, 0]], None),
        (
            {"rollout_is": "token", "rollout_is_threshold": "0.9_4.5"},
            [[2, 0, 4], [0, 0, 0]],
            None,
        ),
        (
            {
                "rollout_is": "sequence",
                "rollout_is_threshold": 6.0,
                "rollout_is_batch_normalize": True,
            },
            [[0.8, 0.8, 0.8], [1.2, 0, 0]],
            None,
        ),
        ({"rollout_rs": "token_k1", "rollout_rs_threshold": 3}, None, [[1, 1, 0], [0, 0, 0]]),
        (
            {"rollout_rs": "token_k1,seq_max_k2", "rollout_rs_threshold": "0.3_1.5,1.0"},
            None,
            [[1, 0, 0], [0, 0, 0]],
        ),
        (
            {"rollout_rs": "seq_sum_k1, seq_mean_k3", "rollout_rs_threshold": "9"},
            None,
            [[1, 1, 1], [1, 0, 0]],
        ),
    ],
)
def test_options_of_verl(config: dict[str, Any], weights: Any, mask: Any) -> None:
    case = verl_case(**config)
    case["expected"] = {
        "is_weights": weights,
        "modified_mask": mask or [[1, 1, 1], [1, 0, 0]],
        "metrics": {},
    }
    assert outcome("rollout_correction_verl", case) is None
