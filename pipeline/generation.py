"""From an engine's completions to columns of a table and to metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.engines.base import Completion
from pipeline.prompting import PromptRenderer


def completion_columns(
    completions: Sequence[Completion], renderer: PromptRenderer
) -> dict[str, list[Any]]:
    """The columns of a rollouts table that describe completions; texts are derived from the ids.

    Every sampled token is trained on, the stop token included.
    """
    ids = [completion.token_ids for completion in completions]
    return {
        "completion_token_ids": ids,
        "loss_mask": [[True] * len(row) for row in ids],
        "completion": renderer.decode_all(ids, keep_special=True),
        "text": renderer.decode_all(ids, keep_special=False),
        "sampling_logprobs": [completion.logprobs for completion in completions],
        "finish_reason": [completion.finish_reason for completion in completions],
    }


def completion_metrics(completions: Sequence[Completion]) -> dict[str, float]:
    """TRL's length metrics, in tokens. `clipped_ratio`: share that did not end by itself."""
    lengths = np.array([len(completion.token_ids) for completion in completions], dtype=np.float64)
    ended = np.array([completion.finish_reason == "stop" for completion in completions], dtype=bool)
    terminated = lengths[ended] if ended.any() else np.zeros(1)
    return {
        "completions/mean_length": float(lengths.mean()),
        "completions/min_length": float(lengths.min()),
        "completions/max_length": float(lengths.max()),
        "completions/clipped_ratio": float(1 - ended.mean()),
        "completions/mean_terminated_length": float(terminated.mean()),
        "completions/min_terminated_length": float(terminated.min()),
        "completions/max_terminated_length": float(terminated.max()),
    }
