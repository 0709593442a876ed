"""Settings of the machine that a stage runs on."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from rollbook.core.component import Model


class VllmRuntime(Model):
    """How engine `vllm` uses the machine."""

    enforce_eager: bool = True
    """Start at once; `false` compiles the model and records CUDA graphs first, worth it for long completions."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Share of the GPU's memory for weights and KV cache."""
    kv_cache_gib: PositiveFloat | None = None
    """KV cache in GiB. Default: what gpu_memory_utilization leaves; 2 on a processor."""
    max_num_seqs: PositiveInt | None = None
    """Rows at once. Default: vLLM's."""
    tensor_parallel_size: PositiveInt = 1
    """Devices that one copy of the model is spread over."""
    data_parallel_size: PositiveInt = 1
    """Copies of the model, each in a process of its own with devices and rows of its own."""


class Runtime(Model):
    """Where things run. May change results only by floating-point order; recorded, and no DVC parameter."""

    device: str = "auto"
    threads: PositiveInt | Literal["auto"] = "auto"
    scoring_processes: NonNegativeInt | Literal["auto"] = "auto"
    """Processes that rewards run in. `auto`: one per processor, none for few rows of rewards without a time limit. 0:
    all in the stage's own process, where no time limit holds."""
    attn_implementation: (
        Literal["eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention"] | None
    ) = None
    """How transformers' models attend, in every stage that opens a policy. Default: transformers' choice, `sdpa` for
    most; `eager` where a model caps its attention scores. Engine `vllm` has its own."""
    vllm: VllmRuntime = Field(default_factory=VllmRuntime)
    fork_server: bool = True
    """Whether one process per `dvc repro` imports torch, transformers and MLflow (some 600 MB), for stages to be forked
    from: seconds less per stage, and the same results. Only on Linux."""
    max_rerun_hours: NonNegativeFloat = 1.0
    """`check` stops when a change would throw away more finished work than this."""
