"""How one token is chosen: temperature, truncation, and inverse CDF with one uniform per (row seed, position).

No random generator has state here. The uniform of a row at a position is a hash of the row's seed and of the position
(SplitMix64: Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators", used as a counter-based
generator), so a completion depends on its own seed alone and not on batch size, order or neighbours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rollbook.core.ids import GOLDEN_GAMMA, mixed

if TYPE_CHECKING:
    from torch import Tensor

    from rollbook.components.engines.base import Sampling

CDF_BITS = 50
"""Fixed-point digits of the CDF. Integers add up to the same sum in every order and on every device; floats do not,
and CUDA's scan over floats is refused under deterministic algorithms."""

IN_CACHE = 2**16
"""Probabilities that are worked on at once on a processor; in the fixed point of the CDF half a mebibyte."""


def uniforms(seeds: NDArray[np.int64], position: int) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1), one per row.

    Args:
        seeds: [B] seed of each row.
        position: index of the token in the completion, from 0.

    Returns:
        [B] multiples of 2^-53.
    """
    start = mixed(seeds.astype(np.uint64))
    with np.errstate(over="ignore"):
        counter = start + np.uint64(position + 1) * GOLDEN_GAMMA
    return (mixed(counter) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def next_tokens(
    logits: Tensor, sampling: Sampling, uniform: Tensor, greedy: Tensor
) -> tuple[Tensor, Tensor]:
    """One token per row: `choose` from `sampling_logprobs`, on a processor for a few rows at a time.

    What is between logits and token is several times the size of the logits, and then it stays in the cache.

    Args:
        logits: [B, V] as the model gave them.
        sampling: temperature and truncation.
        uniform: [B] float64 in [0, 1).
        greedy: [B] bool.

    Returns:
        ids [B] int64, and their log-probs [B] float32; NaN where any probability of the row is not a number.
    """
    import torch

    count = max(IN_CACHE // logits.shape[-1], 1) if logits.device.type == "cpu" else len(logits)
    parts = (each.split(count) for each in (logits, uniform, greedy))
    chosen = [
        choose(sampling_logprobs(some, sampling), *own) for some, *own in zip(*parts, strict=True)
    ]
    ids, logprobs = zip(*chosen, strict=True)
    return torch.cat(ids), torch.cat(logprobs)


def sampling_logprobs(logits: Tensor, sampling: Sampling) -> Tensor:
    """Log-probs of the distribution that is sampled from: after temperature and truncation, renormalised.

    Truncation goes in vLLM's order: min_p, then top_k (ties with the k-th stay), then top_p over what is left.

    Args:
        logits: [B, V] as the model gave them.

    Returns:
        [B, V] float32, nats; -inf where a token was cut away.
    """
    logits = logits.float()
    if sampling.temperature != 1:
        logits = logits / sampling.temperature
    if sampling.min_p > 0:
        logprobs = logits.log_softmax(-1)
        floor = logprobs.amax(-1, keepdim=True) + float(np.log(sampling.min_p))
        logits = logits.masked_fill(logprobs < floor, -float("inf"))
    if 0 < sampling.top_k < logits.shape[-1]:
        kth = logits.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < kth, -float("inf"))
    if sampling.top_p < 1:
        logits = _nucleus(logits, sampling.top_p)
    return logits.log_softmax(-1)


def _nucleus(logits: Tensor, top_p: float) -> Tensor:
    """Keeps the likeliest tokens until their mass reaches `top_p` (Holtzman et al. 2020, arXiv:1904.09751).

    A token stays if the tokens before it hold less than `top_p`; the likeliest always stays, ties go by token id.
    """
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    masses = _fixed_point(ordered.log_softmax(-1))
    before = masses.cumsum(-1) - masses
    ordered = ordered.masked_fill(before >= top_p * 2.0**CDF_BITS, -float("inf"))
    return ordered.gather(-1, order.argsort(dim=-1))


def choose(logprobs: Tensor, uniform: Tensor, greedy: Tensor) -> tuple[Tensor, Tensor]:
    """Chooses one token per row by inverse CDF in the order of token ids; greedy rows take the likeliest.

    Args:
        logprobs: [B, V] float32 of the distribution to sample from.
        uniform: [B] float64 in [0, 1).
        greedy: [B] bool.

    Returns:
        ids [B] int64, and their log-probs [B] float32 under `logprobs` (for greedy rows too); NaN where any is NaN.
    """
    import torch

    cdf = _fixed_point(logprobs).cumsum_(-1)
    target = (uniform[:, None] * cdf[:, -1:]).floor().long()  # below the total, as CDF_BITS < 53
    sampled = torch.searchsorted(cdf, target, right=True).squeeze(-1)
    ids = sampled.clamp(
        max=logprobs.shape[-1] - 1
    )  # no change, but where the CDF is made of no numbers
    if bool(greedy.any()):
        ids = logprobs.argmax(-1).where(greedy, ids)
    chosen, highest = logprobs.gather(-1, ids[:, None]).squeeze(-1), logprobs.amax(-1)
    return ids, chosen.where(~highest.isnan(), highest)


def _fixed_point(logprobs: Tensor) -> Tensor:
    """Probabilities as int64 multiples of 2^-CDF_BITS."""
    return logprobs.double().exp_().mul_(2.0**CDF_BITS).long()
