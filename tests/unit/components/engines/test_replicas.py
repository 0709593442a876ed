"""Copies of an engine in processes of their own: nothing is lost, mixed up or left behind."""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from rollbook.components.engines.base import Completion, GenerationRequest, RolloutEngine, Sampling
from rollbook.components.engines.replicas import Replica, generate_in_replicas, shares
from rollbook.core.errors import PolicyError
from rollbook.core.runtime import Runtime
from tests.unit.components.engines.models import nothing

REQUESTS = [GenerationRequest([1], seed) for seed in range(7)]


class Echo(RolloutEngine):
    """Answers with the seed and a variable of its environment; some seeds make it fail."""

    def generate(
        self,
        policy: Path,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        runtime: Runtime,
        on_tokens: Callable[[int, int], None],
    ) -> list[Completion]:
        for request in requests:
            if request.seed == 99:
                raise PolicyError("no such weights")
            if request.seed == 98:
                os._exit(3)
            on_tokens(1, 2)
        device = int(os.environ["DEVICE"])
        return [Completion([request.seed, device], [0.0, 0.0], "stop") for request in requests]


def _replicas(requests: list[GenerationRequest]) -> list[Replica]:
    return [
        Replica(Echo(name="echo"), Path(), part, Sampling(), Runtime(), {"DEVICE": str(place)})
        for place, part in enumerate(shares(requests, 2))
    ]


def test_rows_come_back_in_order_from_the_copy_they_went_to() -> None:
    counted = [0, 0]

    def count(rows: int, tokens: int) -> None:
        counted[0] += rows
        counted[1] += tokens

    made = generate_in_replicas(_replicas(REQUESTS), count)
    assert [each.token_ids for each in made] == [[seed, int(seed >= 3)] for seed in range(7)]
    assert counted == [7, 14]
    assert not multiprocessing.active_children()
    assert "DEVICE" not in os.environ


@pytest.mark.parametrize(
    ("seed", "message"), [(99, "copy 1 .*no such weights"), (98, "copy 1 .*died")]
)
def test_a_copy_that_fails_stops_the_others(seed: int, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        generate_in_replicas(_replicas([*REQUESTS, GenerationRequest([1], seed)]), nothing)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("copies", [1, 2, 3, 7])
def test_shares_hold_every_row_once(copies: int) -> None:
    parts = shares(REQUESTS, copies)
    assert [request for part in parts for request in part] == REQUESTS
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
