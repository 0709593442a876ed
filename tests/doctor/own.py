"""Rewards and an engine that spoil a run, named by path as a user's own are."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollbook.components.engines.base import Completion, GenerationRequest, Sampling
from rollbook.components.engines.transformers import Transformers
from rollbook.core.runtime import Runtime

Completions = Sequence[Sequence[dict[str, str]]]


def empty(completions: Completions, **columns: Any) -> list[float]:
    """1 for no answer at all."""
    return [float(not text.strip()) for text in _texts(completions)]


def noise(completions: Completions, **columns: Any) -> list[float]:
    """Between -0.001 and 0.001, not the same for equal answers."""
    texts = enumerate(_texts(completions))
    return [random.Random(f"{place} {text}").uniform(-1e-3, 1e-3) for place, text in texts]


def begins(completions: Completions, **columns: Any) -> list[float]:
    """1 for answers that begin with 1, whatever was asked."""
    return [float(text.startswith("1")) for text in _texts(completions)]


def rarely(completions: Completions, **columns: Any) -> list[float | None]:
    """Has an opinion on answers that begin with 1 only."""
    return [float(len(text)) if text.startswith("1") else None for text in _texts(completions)]


def _texts(completions: Completions) -> list[str]:
    return [str(each[0]["content"]) for each in completions]


class Repeating(Transformers):
    """Draws with the same random numbers for all answers to a prompt."""

    def generate_batches(
        self,
        policy: Path,
        requests: Sequence[GenerationRequest],
        batches: Sequence[Sequence[int]],
        sampling: Sampling,
        runtime: Runtime,
        on_tokens: Callable[[int, int], None],
    ) -> Iterator[list[Completion]]:
        first: dict[tuple[int, ...], int] = {}
        same = [
            replace(each, seed=first.setdefault(tuple(each.prompt_token_ids), each.seed))
            for each in requests
        ]
        return super().generate_batches(policy, same, batches, sampling, runtime, on_tokens)


class Warmer(Transformers):
    """Samples at one and a half times the temperature it is told."""

    def generate_batches(
        self,
        policy: Path,
        requests: Sequence[GenerationRequest],
        batches: Sequence[Sequence[int]],
        sampling: Sampling,
        runtime: Runtime,
        on_tokens: Callable[[int, int], None],
    ) -> Iterator[list[Completion]]:
        warmer = sampling.model_copy(update={"temperature": 1.5 * sampling.temperature})
        return super().generate_batches(policy, requests, batches, warmer, runtime, on_tokens)
