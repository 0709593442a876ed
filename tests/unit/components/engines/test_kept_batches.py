"""Finished batches come back bit by bit, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollbook.components.engines.base import Completion
from rollbook.components.engines.kept_batches import KeptBatches
from tests.unit.components.engines.models import requests_for

REQUESTS = requests_for(prompts=2, samples=2)
MADE = [
    Completion([3, 2**40], [-0.1, -1e-300], "stop"),
    Completion([], [], "error"),
    Completion([7], [-1 / 3], "length"),
    Completion([1, 2, 3], [0.0, -2.5, float("-inf")], "stop"),
]
KEPT = KeptBatches("generate_rollouts", "a" * 32)


def test_a_batch_comes_back_as_it_was(project: Path) -> None:
    assert KEPT.read(REQUESTS) is None
    KEPT.write(REQUESTS, MADE)
    assert KEPT.read(REQUESTS) == MADE
    assert KEPT.read(REQUESTS[:3]) is None
    assert KEPT.read([*REQUESTS[1:], REQUESTS[0]]) is None
    assert KeptBatches("generate_rollouts", "b" * 32).read(REQUESTS) is None
    assert KeptBatches("evaluate_policy", "a" * 32).read(REQUESTS) is None


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "other"])
def test_what_is_damaged_is_not_there(project: Path, damage: str) -> None:
    KEPT.write(REQUESTS, MADE)
    (file,) = KEPT.folder.iterdir()
    content = bytearray(file.read_bytes())
    place = content.index((2**40).to_bytes(8, "little"))
    flipped = content[:place] + b"\x01" + content[place + 1 :]
    file.write_bytes(
        {"cut": content[: len(content) // 2], "flipped": flipped, "empty": b"", "other": b"{}"}[
            damage
        ]
    )
    assert KEPT.read(REQUESTS) is None
    KEPT.write(REQUESTS, MADE)
    assert KEPT.read(REQUESTS) == MADE


def test_only_the_own_key_stays(project: Path) -> None:
    other = KeptBatches(KEPT.stage, "b" * 32)
    foreign = KeptBatches("evaluate_policy", "b" * 32)
    for each in (KEPT, other, foreign):
        each.write(REQUESTS, MADE)
    KEPT.forget_others()
    assert KEPT.read(REQUESTS) == MADE == foreign.read(REQUESTS)
    assert not other.folder.exists()
    KEPT.forget()
    assert not KEPT.folder.exists()
