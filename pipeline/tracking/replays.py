"""Verdicts of replays on the runs of what was replayed: on an iteration's own run, and on its chain's for the base."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline.config import BASE_KEY, Params
from pipeline.lean_imports import without
from pipeline.tracking.chains import read_chains
from pipeline.tracking.store import Store, opened

with without("pandas"):
    from pipeline.tracking import chain_runs, iteration_runs


@dataclass(frozen=True)
class ReplayMark:
    """What is shown of one replay.

    Attributes:
        key: of the iteration.
        name: of the step in names of tags and metrics, such as `update_policy`.
        tags: by what they say: verdict, when, first difference.
        differing: outputs that differ; None if nothing is known of them.
        at_ms: when, milliseconds since 1970.
    """

    key: str
    name: str
    tags: Mapping[str, str]
    differing: int | None
    at_ms: int


def send_replays(params: Params, marks: Sequence[ReplayMark]) -> int:
    """Marks the runs that the store has of what was replayed.

    Returns:
        How many marks found a run.

    Raises:
        TrackingError: if the store is away, busy or refuses.
    """
    with opened(params.tracking.experiment) as store:
        runs = dict(_runs(store, params))
        known = [mark for mark in marks if mark.key in runs]
        for mark in known:
            for run_id in runs[mark.key]:
                _mark(store, run_id, mark)
    return len(known)


def _runs(store: Store, params: Params) -> Iterator[tuple[str, list[str]]]:
    """Ids of runs by the iteration they show as it is now."""
    chains = read_chains(params)
    shown = chain_runs.chain_runs(store)
    parents = [run.run_id for run in shown if any(run.contains(chain) for chain in chains)]
    if parents:
        yield BASE_KEY, parents
    steps = {step.key: step for chain in chains for step in chain.steps}
    for key, step in steps.items():
        found = iteration_runs.find(store, step)
        if found is not None:
            yield key, [found.info.run_id]


def _mark(store: Store, run_id: str, mark: ReplayMark) -> None:
    name = f"replay/{mark.name}/differing_outputs"
    tags = {f"replay.{mark.name}.{what}": text for what, text in mark.tags.items()}
    numbers = {} if mark.differing is None else {name: float(mark.differing)}
    points = chain_runs.metrics_at(numbers, 0, mark.at_ms)
    points = [point for point in points if point.key == name]
    chain_runs.log(store.client, run_id, points, tags=tags)
