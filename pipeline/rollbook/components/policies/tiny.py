"""tiny: a language model small enough to train in minutes on two processor cores, made from nothing.

A Llama-architecture model of about 0.18M parameters that reads bytes. It is warmed up on the training prompts, half
of the time with the right answers and half of the time with deliberately noisy ones, so that it knows how to answer and
often does not: what reinforcement learning then has to find out is which of its answers are right.
Evaluation prompts are never seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from rollbook.components.policies.base import BasePolicy, CreatedPolicy, WarmStartExample
from rollbook.components.policies.byte_tokenizer import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    VOCABULARY_SIZE,
    save_byte_tokenizer,
)
from rollbook.core.ids import seed_of

if TYPE_CHECKING:
    from rollbook.core.runtime import Runtime

INITIAL_DEVIATION = 0.08
"""Standard deviation of initial weights. At 64 wide the usual 0.02 learns the same sums several times as slowly."""


class Tiny(BasePolicy):
    """A small model of bytes with a supervised warm start.

    Attributes:
        hidden_size, intermediate_size, layers, heads, head_size: its shape. vLLM takes no heads smaller than 32.
        context_length: most tokens (bytes) of prompt and completion together.
        warm_start_steps: optimizer steps of the warm start; 0 leaves random weights.
        warm_start_batch: examples per step.
        warm_start_learning_rate: of its matrices, at its highest.
        wrong_share: share of wrong answers in the second half of the warm start.
    """

    hidden_size: PositiveInt = 64
    intermediate_size: PositiveInt = 256
    layers: PositiveInt = 2
    heads: PositiveInt = 4
    head_size: PositiveInt = 32
    context_length: PositiveInt = 1024
    warm_start_steps: NonNegativeInt = 400
    warm_start_batch: PositiveInt = 128
    warm_start_learning_rate: PositiveFloat = 0.02
    wrong_share: Annotated[float, Field(ge=0, le=1)] = 0.5

    @model_validator(mode="after")
    def _positions_come_in_pairs(self) -> Tiny:
        if self.head_size % 2:
            raise ValueError(f"head_size must be even, for rotary positions (got {self.head_size})")
        return self

    def create(
        self, examples: Sequence[WarmStartExample], seed: int, runtime: Runtime
    ) -> CreatedPolicy:
        from rollbook.components.policies.loading import prepare_torch
        from rollbook.components.policies.warm_start import encoded, warm_start

        device = prepare_torch(runtime)
        model = self._untrained(seed).to(device)
        pairs = encoded(examples, self.context_length)
        loss = warm_start(
            model,
            pairs,
            steps=self.warm_start_steps,
            batch_size=self.warm_start_batch,
            learning_rate=self.warm_start_learning_rate,
            wrong_share=self.wrong_share,
            seed=seed,
        )

        def write(folder: Path) -> None:
            model.save_pretrained(folder)
            save_byte_tokenizer(folder, self.context_length)

        facts = {"parameters": model.num_parameters(), "warm_start/examples": len(pairs)}
        return CreatedPolicy(write, {**facts, "warm_start/loss": loss})

    def parameter_count(self) -> int:
        width = self.hidden_size
        layer = (
            4 * width * self.heads * self.head_size + 3 * width * self.intermediate_size + 2 * width
        )
        return VOCABULARY_SIZE * width + self.layers * layer + width

    def _untrained(self, seed: int) -> Any:
        """The model with random weights that `seed` alone decides."""
        from rollbook.core.framework_imports import lean_transformers

        with lean_transformers():
            import torch
            from transformers import LlamaConfig, LlamaForCausalLM
            from transformers.utils import logging
        logging.disable_progress_bar()
        config = LlamaConfig(
            vocab_size=VOCABULARY_SIZE,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            head_dim=self.head_size,
            max_position_embeddings=self.context_length,
            initializer_range=INITIAL_DEVIATION,
            tie_word_embeddings=True,
            bos_token_id=BOS_ID,
            eos_token_id=EOS_ID,
            pad_token_id=PAD_ID,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of("initial weights", seed))
            return LlamaForCausalLM(config)
