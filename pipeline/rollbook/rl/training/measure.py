"""Log-probs of stored rollouts under a frozen policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from rollbook.core.ragged import Ragged
from rollbook.rl.tokens import off_grid
from rollbook.rl.training.batches import batch_of, micro_batches
from rollbook.rl.training.logprobs import completion_logprobs
from rollbook.rl.training.rows import Rows
from rollbook.rl.training.sharing import break_even_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from rollbook.rl.training.critic import ValueFunction


@dataclass(frozen=True)
class Measured:
    """What was measured of each completion token.

    Attributes:
        logprobs: under the policy, nats.
        entropies: of the distribution it was drawn from, nats.
        values: what the critic says of it; None: no critic was asked.
    """

    logprobs: Ragged
    entropies: Ragged
    values: Ragged | None = None


@torch.inference_mode()
def measure(
    model: PreTrainedModel,
    rows: Rows,
    temperature: float,
    precision: str,
    micro_batch_tokens: int,
    share_prompts: bool,
    on_rows: Callable[[int, int], None],
    critic: ValueFunction | None = None,
) -> Measured:
    """Runs a policy over all rows, and a critic beside it if there is one.

    Args:
        model: in evaluation mode.
        rows: of the iteration; rows without tokens get empty lists.
        temperature: the rollouts were sampled with.
        precision: of the update, so that old and current log-probs compare.
        micro_batch_tokens: tokens, padding included, that go through the model at once.
        share_prompts: whether rows of one prompt may share a sequence.
        on_rows: called with (rows, tokens) done since the last call.
        critic: of this policy.
    """
    completions = rows.completions
    logprobs = np.zeros(len(completions.values), np.float32)
    entropies, values = np.zeros_like(logprobs), np.zeros_like(logprobs)
    device = next(model.parameters()).device
    index = np.flatnonzero(completions.lengths)
    break_even = break_even_tokens(model, rows) if share_prompts else None
    for part in micro_batches(index, rows.prompts, completions, micro_batch_tokens, break_even):
        batch = batch_of(part, rows.prompts, completions, device)
        policy = completion_logprobs(model, batch, temperature, precision)
        places = completions.places(part.rows)
        logprobs[places] = off_grid(policy.logprobs, batch.completion_mask)
        entropies[places] = off_grid(policy.entropies, batch.completion_mask)
        if critic is not None:
            said = critic(batch, policy.hidden, precision)
            values[places] = off_grid(said, batch.completion_mask)
        on_rows(len(part.rows), len(places))
    on_rows(len(rows) - len(index), 0)
    lengths = completions.lengths
    return Measured(
        Ragged(logprobs, lengths),
        Ragged(entropies, lengths),
        None if critic is None else Ragged(values, lengths),
    )
