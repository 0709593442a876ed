"""Runs recorded cases of step rewards to token advantages."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.builders import advantage_inputs
from tests.vectors.adapters_advantages import estimator_of
from tests.vectors.cases import differs

CATEGORIES = ("process_supervision",)


def run_case(_category: str, case: dict[str, Any]) -> str | None:
    """None if the estimator gives the recorded numbers, else what differs."""
    config, given, expected, tol = (case[part] for part in ("config", "inputs", "expected", "tol"))
    estimator = estimator_of("process_supervision", **config)
    ends, rewards = given["step_end_token"], given["step_rewards"]
    rows = len(ends)
    inputs = advantage_inputs(
        [0.0] * rows,  # step rewards are all that counts
        given["group"],
        loss_mask=[[1] * given["num_tokens"]] * rows,
        steps=[list(zip(*row, strict=True)) for row in zip(ends, rewards, strict=True)],
    )
    tokens = estimator(inputs).token_advantages
    assert tokens is not None
    grid = tokens.padded(0.0)
    at_ends = [grid[row, row_ends] for row, row_ends in enumerate(ends)]
    # What a step adds is what is left of the sum at its end without that of the next.
    normalized = [np.append(sums[:-1] - sums[1:], sums[-1:]) for sums in at_ends]
    found = (
        ("token advantages", grid, np.array(expected["token_advantages"])),
        ("step advantages", np.concatenate(at_ends), np.concatenate(expected["step_advantages"])),
        (
            "step rewards",
            np.concatenate(normalized),
            np.concatenate(expected["normalized_step_rewards"]),
        ),
    )
    for name, got, want in found:
        if text := differs(name, got, want.tolist(), tol["rtol"], tol["atol"]):
            return text
    return None
