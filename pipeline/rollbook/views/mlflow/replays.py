"""Verdicts of replays on the runs of what was replayed: on an iteration's own run, and on its chain's for the base.

Verdicts that the store lacks are sent with everything else, as long as what they are about is what is recorded now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from rollbook.core.ids import BASE_KEY
from rollbook.core.lean_imports import without
from rollbook.project.replay.marks import ReplayMark, kept_marks
from rollbook.project.run.run import Run
from rollbook.views.mlflow.chains import FinishedChain, hash_of, read_chains
from rollbook.views.mlflow.store import TrackingStore, opened

with without("pandas"):
    from mlflow.entities import Metric
    from mlflow.entities import Run as MlflowRun

    from rollbook.views.mlflow import chain_runs, iteration_runs
    from rollbook.views.mlflow.chain_runs import ChainRun


def send_replays(run: Run) -> set[tuple[str, str]]:
    """Shows kept verdicts on the runs that the store has.

    Returns:
        Iteration and step of all that are shown.

    Raises:
        TrackingError: if the store is away, busy or refuses.
    """
    chains = read_chains(run)
    with opened(run.params.tracking.experiment) as store:
        parents = chain_runs.chain_runs(store)
        shown = [(chain, each) for chain in chains for each in parents if each.contains(chain)]
        return send(store, shown, run.md5s)


def send(
    store: TrackingStore, shown: Sequence[tuple[FinishedChain, ChainRun]], md5s: Mapping[str, str]
) -> set[tuple[str, str]]:
    """Shows kept verdicts on chains and their iterations, those that are there already aside.

    Returns:
        Iteration and step of all that are shown.
    """
    marks: dict[str, list[ReplayMark]] = {}
    for mark in kept_marks():
        if mark.is_about(md5s):
            marks.setdefault(mark.key, []).append(mark)
    found: set[tuple[str, str]] = set()
    for chain, run in shown if marks else ():
        about = {key: marks[key] for key in (BASE_KEY, *chain.contents) if key in marks}
        digest = hash_of([asdict(mark) for key in about for mark in about[key]])
        if run.replays != digest:
            for key, target in _runs(store, run, chain, about):
                _mark(store, target, about[key])
            store.client.set_tag(run.run_id, chain_runs.REPLAYS, digest)
            run.replays = digest
        found |= {(mark.key, mark.name) for key in about for mark in about[key]}
    return found


def _runs(
    store: TrackingStore, run: ChainRun, chain: FinishedChain, keys: Mapping[str, object]
) -> Iterator[tuple[str, MlflowRun]]:
    """Runs that show what has these keys."""
    if BASE_KEY in keys:
        yield BASE_KEY, store.client.get_run(run.run_id)
    for step in chain.steps:
        if step.key in keys and (found := iteration_runs.find(store, step)):
            yield step.key, found


def _mark(store: TrackingStore, run: MlflowRun, marks: Sequence[ReplayMark]) -> None:
    """Sends of these verdicts what the run does not say yet."""
    tags: dict[str, str] = {}
    points: list[Metric] = []
    for mark in marks:
        said = {f"replay.{mark.name}.{what}": text for what, text in mark.tags.items()}
        if said.items() <= run.data.tags.items():
            continue
        tags |= said
        if mark.differing is not None:
            name = f"replay/{mark.name}/differing_outputs"
            points.append(Metric(name, float(mark.differing), mark.at_ms, 0))
    if tags:
        chain_runs.log(store.client, run.info.run_id, points, tags=tags)
