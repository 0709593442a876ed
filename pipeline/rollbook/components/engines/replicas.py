"""Data parallelism for an engine that fills one device: copies of it in processes of their own share the rows."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollbook.components.engines.base import Completion, GenerationRequest, RolloutEngine
from rollbook.core.errors import PolicyError, RollbookError
from rollbook.core.process import die_with_parent

if TYPE_CHECKING:
    from rollbook.components.engines.base import Sampling
    from rollbook.core.runtime import Runtime


@dataclass(frozen=True)
class Replica:
    """One copy: what it generates, and the variables that tell it from the others.

    Attributes:
        engine: generates in the process it is called in.
        policy: a Hugging Face folder.
        requests: its rows.
        sampling: of all rows.
        runtime: of this copy alone.
        variables: environment variables, such as the devices it sees.
    """

    engine: RolloutEngine
    policy: Path
    requests: Sequence[GenerationRequest]
    sampling: Sampling
    runtime: Runtime
    variables: Mapping[str, str]


def shares(requests: Sequence[GenerationRequest], copies: int) -> list[Sequence[GenerationRequest]]:
    """The rows in `copies` runs of nearly equal length, in order, so that a group's prompt is mostly read once."""
    edges = [len(requests) * copy // copies for copy in range(copies + 1)]
    return [requests[start:end] for start, end in pairwise(edges)]


def generate_in_replicas(
    replicas: Sequence[Replica], on_tokens: Callable[[int, int], None]
) -> list[Completion]:
    """Runs all copies at once; their completions, in order.

    Raises:
        PolicyError: what the first copy that failed says; the others are stopped.
    """
    context = multiprocessing.get_context("spawn")
    processes, ends = [], []
    made: dict[int, list[Completion]] = {}
    try:
        for replica in replicas:
            own, other = context.Pipe(duplex=False)
            ends.append(own)
            process = context.Process(target=_serve, args=(other, replica), daemon=False)
            process.start()
            processes.append(process)
            other.close()
        while waiting := [end for place, end in enumerate(ends) if place not in made]:
            for end in wait(waiting):
                assert isinstance(end, Connection)
                place = ends.index(end)
                what, content = _received(end, place)
                if what == "made":
                    made[place] = content
                else:
                    on_tokens(*content)
        for process in processes:
            process.join()
    finally:
        for process in processes:
            process.terminate()
            process.join()
            process.close()
        for end in ends:
            end.close()
    return [completion for place in range(len(replicas)) for completion in made[place]]


def _received(end: Connection, place: int) -> tuple[str, Any]:
    """One message of a copy; a failure becomes the error it is."""
    try:
        what, content = end.recv()
    except EOFError:
        raise PolicyError(
            f"copy {place} of the engine died without a word", "it may have run out of memory"
        ) from None
    if what == "failed":
        raise PolicyError(f"copy {place} of the engine: {content}")
    return what, content


def _serve(end: Connection, replica: Replica) -> None:
    """What a copy's process does."""
    die_with_parent()
    os.environ.update(replica.variables)
    try:
        made = replica.engine.generate(
            replica.policy,
            replica.requests,
            replica.sampling,
            replica.runtime,
            lambda rows, tokens: end.send(("progress", (rows, tokens))),
        )
        end.send(("made", made))
    except RollbookError as error:
        end.send(("failed", str(error)))
    except Exception as error:  # whatever vLLM meets; the traceback goes to the log of the stage
        end.send(("failed", f"{type(error).__name__}: {error}"))
        raise
