"""Small random policies with a byte tokenizer, made in seconds, whose completions have many lengths."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

from rollbook.components.engines.base import GenerationRequest
from rollbook.components.policies.byte_tokenizer import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    VOCABULARY_SIZE,
    save_byte_tokenizer,
)
from rollbook.core.ids import seed_of
from rollbook.core.runtime import Runtime, VllmRuntime

RUNTIME = Runtime(device="cpu", threads=1, vllm=VllmRuntime(kv_cache_gib=0.0625))
CONTEXT_LENGTH = 64
HEAD_SIZE = 32
"""The smallest that vLLM has kernels for."""
ROUNDING = 5e-5
"""How far apart a logit or log-prob may be in batches of other shapes. Logits of these models are below 10, and have
passed 12 sums of up to 64 float32 products; another order of adding, which a processor may choose by shape and row,
moves each by about √64 · 2^-24 of its size: 12 · √64 · 2^-24 · 9 = 5e-5. Against float64 they are 9e-6 off at most."""
FIRST_CHARACTER = 6
SIZES = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT_LENGTH,
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
    "pad_token_id": PAD_ID,
}


def save_llama(folder: Path, stop_bias: float = 3.0, **config: Any) -> Path:
    """A random Llama with sharp distributions; `stop_bias` makes the stop token likelier."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{**SIZES, "initializer_range": 0.3, **config}))
    with torch.no_grad():
        model.lm_head.weight[EOS_ID] *= stop_bias
    model.save_pretrained(folder)
    save_byte_tokenizer(folder, CONTEXT_LENGTH)
    return folder


def requests_for(prompts: int, samples: int, greedy: bool = False) -> list[GenerationRequest]:
    """Groups of requests for prompts of 3 to 9 tokens."""
    return [
        GenerationRequest(
            [BOS_ID, *range(FIRST_CHARACTER + place, FIRST_CHARACTER + place + 2 + place % 7)],
            seed_of(place, sample),
            greedy,
        )
        for place in range(prompts)
        for sample in range(samples)
    ]


def need_vllm() -> None:
    """Skips a test where vLLM is not installed, and fails it in CI, which installs it."""
    if importlib.util.find_spec("vllm") is None:
        missing = "vllm is not installed; on Linux with an x86-64 processor `make test` installs it"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing)


def nothing(done: int, tokens: int) -> None:
    """A progress callback."""
