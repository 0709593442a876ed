"""Names of prompts, groups and rollouts, and the seed of every row: hashes and paths, nothing counted globally."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
"""SplitMix64's increment: the odd number nearest 2^64 divided by the golden ratio."""


def prompt_id_of(messages: Sequence[Mapping[str, Any]], reference_answer: str | None) -> str:
    """16 hex digits of the hash of messages and reference answer."""
    content = [[[message["role"], message["content"]] for message in messages], reference_answer]
    return hashlib.sha256(
        json.dumps(content, ensure_ascii=False).encode("utf-8", "surrogatepass")
    ).hexdigest()[:16]


def group_id_of(iteration: str, prompt_id: str, evaluation_set: str | None = None) -> str:
    """`<iteration>/<prompt_id>`; of an evaluation `eval:<set>/<iteration>/<prompt_id>`."""
    prefix = f"eval:{evaluation_set}/" if evaluation_set is not None else ""
    return f"{prefix}{iteration}/{prompt_id}"


def rollout_id_of(group_id: str, sample_index: int) -> str:
    """`<group_id>/<sample_index, two or more digits>`."""
    return f"{group_id}/{sample_index:02d}"


def seed_of(*parts: object) -> int:
    """A seed of 63 bits from any parts, such as (seed, iteration, prompt_id, sample_index)."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's output function: a bijection of 64 bits whose results look random; overflow is meant.

    Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators".
    """
    with np.errstate(over="ignore"):
        numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
