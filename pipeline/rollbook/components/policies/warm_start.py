"""Supervised warm start of a small policy: first on right answers, then on answers that are often another prompt's.

The noise comes second because it drowns the signal: with half of the answers wrong from the start, a model of this size
needs several times as many steps before it answers better than chance. For the same reason matrices are trained with
Muon (Jordan 2024, https://kellerjordan.github.io/posts/muon), which here needs a third of the steps that AdamW does;
embeddings and norms with AdamW.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rollbook.components.policies.base import WarmStartExample
from rollbook.components.policies.byte_tokenizer import (
    EOS_ID,
    PAD_ID,
    encode_bytes,
    save_byte_tokenizer,
)
from rollbook.components.prompt_format import PromptFormat
from rollbook.components.prompting import PromptRenderer
from rollbook.core.ids import seed_of

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

WARMUP_SHARE = 0.05
FINAL_SHARE = 0.05
"""Of the learning rate, at the last step."""
WEIGHT_DECAY = 0.1
MOMENTUM = 0.95
ADAM_BETAS = (0.9, 0.99)
ADAM_LEARNING_RATE = 4e-3
MAX_GRAD_NORM = 1.0
RIGHT_ANSWERS_SHARE = 0.5
"""Part of the steps that see right answers only."""
MAX_BATCH_TOKENS = 16_384
"""Long prompts make batches smaller, not slower."""
IGNORED = -100
"""Label that transformers leaves out of its loss."""


@dataclass(frozen=True)
class Pair:
    """A prompt and its right answer, stop token included, as token ids."""

    prompt: list[int]
    answer: list[int]


def encoded(examples: Sequence[WarmStartExample], context_length: int) -> list[Pair]:
    """Examples as token ids; those without an answer, or too long to be read with any answer, are left out."""
    answered = [example for example in examples if example.reference_answer is not None]
    with tempfile.TemporaryDirectory() as place:
        save_byte_tokenizer(Path(place), context_length)
        renderer = PromptRenderer(Path(place), PromptFormat())
        prompts = renderer.render_all([example.messages for example in answered])
        answers = encode_bytes(Path(place), [str(each.reference_answer) for each in answered])
    longest = max(map(len, answers), default=0) + 1
    return [
        Pair(prompt.token_ids, [*answer, EOS_ID])
        for prompt, answer in zip(prompts, answers, strict=True)
        if len(prompt.token_ids) + longest <= context_length
    ]


def warm_start(
    model: Any,
    pairs: Sequence[Pair],
    *,
    steps: int,
    batch_size: int,
    learning_rate: float,
    wrong_share: float,
    seed: int,
) -> float:
    """Trains `model` in place, with a cosine schedule.

    Args:
        model: a causal language model of transformers, on its device.
        pairs: what to learn from; without any, nothing happens.
        steps: optimizer steps.
        batch_size: examples per step, fewer if they are long.
        learning_rate: of matrices (Muon), after warm-up.
        wrong_share: share of answers taken from another prompt in the second half.
        seed: decides which examples come when and which answers are wrong.

    Returns:
        Loss of the last step, in nats per token; NaN if there was none.
    """
    import torch

    if not pairs:
        return math.nan
    generator = np.random.Generator(np.random.PCG64(seed_of("warm start", seed)))
    optimizers = _optimizers(model, learning_rate)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    highest = [group["lr"] for group in groups]
    longest = max(len(pair.prompt) for pair in pairs) + max(len(pair.answer) for pair in pairs)
    rows = max(1, min(batch_size, MAX_BATCH_TOKENS // longest))
    loss = torch.tensor(math.nan)
    model.train()
    for step in range(steps):
        share = wrong_share if step >= RIGHT_ANSWERS_SHARE * steps else 0.0
        ids, labels = _batch(pairs, _drawn(len(pairs), rows, share, generator))
        loss = model(input_ids=ids.to(model.device), labels=labels.to(model.device)).loss
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        for group, rate in zip(groups, highest, strict=True):
            group["lr"] = rate * _schedule(step, steps)
        for optimizer in optimizers:
            optimizer.step()
    model.eval()
    return float(loss.detach())


def _optimizers(model: Any, learning_rate: float) -> list[Optimizer]:
    """Muon for matrices inside the layers, AdamW for embeddings and vectors."""
    import torch

    embeddings = {
        id(part.weight) for part in model.modules() if isinstance(part, torch.nn.Embedding)
    }
    matrices = [p for p in model.parameters() if p.ndim == 2 and id(p) not in embeddings]
    inside = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in inside]
    decay: Any = {"weight_decay": WEIGHT_DECAY}
    made: list[Optimizer] = []
    if matrices:
        made.append(torch.optim.Muon(matrices, lr=learning_rate, momentum=MOMENTUM, **decay))
    if others:
        made.append(torch.optim.AdamW(others, lr=ADAM_LEARNING_RATE, betas=ADAM_BETAS, **decay))
    return made


def _schedule(step: int, steps: int) -> float:
    """Share of the learning rate: linear warm-up, then a cosine down to `FINAL_SHARE`."""
    warmup = min(1.0, (step + 1) / max(1.0, WARMUP_SHARE * steps))
    cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
    return warmup * (FINAL_SHARE + (1 - FINAL_SHARE) * cosine)


def _drawn(
    count: int, rows: int, wrong_share: float, generator: np.random.Generator
) -> list[tuple[int, int]]:
    """Pairs of (prompt, whose answer) for one batch."""
    prompts = generator.integers(0, count, rows)
    others = generator.integers(0, count, rows)
    wrong = generator.random(rows) < wrong_share
    return list(zip(prompts.tolist(), np.where(wrong, others, prompts).tolist(), strict=True))


def _batch(pairs: Sequence[Pair], drawn: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """Ids and labels, both [B, T], padded on the right; only answers have labels."""
    import torch

    rows = [(pairs[prompt].prompt, pairs[answer].answer) for prompt, answer in drawn]
    width = max(len(prompt) + len(answer) for prompt, answer in rows)
    ids = np.full((len(rows), width), PAD_ID, dtype=np.int64)
    labels = np.full((len(rows), width), IGNORED, dtype=np.int64)
    for place, (prompt, answer) in enumerate(rows):
        end = len(prompt) + len(answer)
        ids[place, :end] = [*prompt, *answer]
        labels[place, len(prompt) : end] = answer
    return torch.from_numpy(ids), torch.from_numpy(labels)
