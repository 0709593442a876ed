"""Names of prompts, groups and rollouts, and the seed of every row: hashes and paths, nothing counted globally."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

PARAMS_FILE = Path("params.yaml")
SEALED_FOLDER = Path("sealed")
"""Files of sealed iterations; see `rollbook.settings.sealed`."""
BASE_KEY = "i0000"
"""Key of the base policy; every chain of iterations starts from it."""
ITERATION_KEY = re.compile(r"[A-Za-z]+[0-9]{4}")
"""Letters first: DVC silently drops keys that YAML reads as numbers."""
GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
"""SplitMix64's increment: the odd number nearest 2^64 divided by the golden ratio."""

EVALUATION = "eval:"
"""What ids of evaluations begin with."""


def prompt_id_of(messages: Sequence[Mapping[str, Any]], reference_answer: str | None) -> str:
    """16 hex digits of the hash of messages and reference answer."""
    content = [[[message["role"], message["content"]] for message in messages], reference_answer]
    return hashlib.sha256(
        json.dumps(content, ensure_ascii=False).encode("utf-8", "surrogatepass")
    ).hexdigest()[:16]


def group_id_of(iteration: str, prompt_id: str, evaluation_set: str | None = None) -> str:
    """`<iteration>/<prompt_id>`; of an evaluation `eval:<set>/<iteration>/<prompt_id>`."""
    prefix = f"{EVALUATION}{evaluation_set}/" if evaluation_set is not None else ""
    return f"{prefix}{iteration}/{prompt_id}"


def rollout_id_of(group_id: str, sample_index: int) -> str:
    """`<group_id>/<sample_index, two or more digits>`."""
    return f"{group_id}/{sample_index:02d}"


def pair_id_of(chosen_id: str, rejected_id: str) -> str:
    """`<rollout_id of the chosen answer>-<sample index of the rejected one>`, both of one group."""
    return f"{chosen_id}-{rejected_id.rpartition('/')[2]}"


@dataclass(frozen=True)
class IdParts:
    """What an id of a group or rollout, or the beginning of one, is made of; what it does not say is empty.

    Attributes:
        evaluation_set: of an evaluation, which may itself hold slashes; empty in training.
        iteration: its key.
        prompt_id: of the prompt.
        sample: number of the answer, as written.
    """

    evaluation_set: str
    iteration: str
    prompt_id: str = ""
    sample: str = ""

    @property
    def head(self) -> str:
        """What stands before the iteration: `eval:<set>/`, or nothing."""
        return f"{EVALUATION}{self.evaluation_set}/" if self.evaluation_set else ""


def parts_of_group(group_id: str) -> IdParts:
    """The parts of a whole id of a group, as `group_id_of` writes it."""
    *before, iteration, prompt_id = group_id.split("/")
    return IdParts("/".join(before).removeprefix(EVALUATION), iteration, prompt_id)


def parts_of(text: str, iterations: Container[str]) -> IdParts | None:
    """The parts of an id, or of the beginning of one; None if it has more parts than an id.

    Names of evaluation sets may hold slashes, so in an evaluation the iteration is looked for from the right.

    Args:
        text: such as `i0003/4a7f` or `eval:math/aime/i0003/4a7f…/02`.
        iterations: keys that there are. Where none of them stands in the id, the set has no slash.
    """
    parts, name = text.split("/"), ""
    if text.startswith(EVALUATION):
        places = range(max(1, len(parts) - 3), len(parts))
        at = next((at for at in reversed(places) if parts[at] in iterations), 1)
        name = "/".join(parts[:at]).removeprefix(EVALUATION)
        parts = parts[at:]
    return IdParts(name, *(parts or [""])) if len(parts) <= 3 else None


def order_of(iteration: str) -> tuple[str, str]:
    """What iterations are sorted by: their number, then their branch; so gspo0004 stands behind i0003."""
    return iteration[-4:], iteration


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
