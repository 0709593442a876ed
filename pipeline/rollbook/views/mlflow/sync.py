"""Brings the MLflow store up to date with the artifacts, or makes it anew."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rollbook.core.errors import ArtifactError
from rollbook.core.ids import BASE_KEY
from rollbook.core.lean_imports import without
from rollbook.project.run.run import Run
from rollbook.views.mlflow.chains import FinishedChain, FinishedIteration, read_chains
from rollbook.views.mlflow.descriptions import shown_steps
from rollbook.views.mlflow.store import (
    TrackingStore,
    experiment_kept,
    is_default,
    opened,
    set_aside,
)

with without("pandas"):  # mlflow does without it, and is imported half a second sooner
    from rollbook.views.mlflow import chain_runs, iteration_runs, replays, rescore_runs, views
    from rollbook.views.mlflow.chain_runs import ChainRun
    from rollbook.views.mlflow.rescore_runs import Answers

NOTHING_TO_SEND = "no iteration that is finished and current is on disk: nothing to send"
GET = "`rollbook pull` brings what was made, `rollbook status` says what is stale"


def bring_up_to_date(run: Run, answers: Sequence[Answers] = (), durable: bool = True) -> list[str]:
    """Sends every finished iteration and stored re-score that the store lacks, and what was asked just now.

    Args:
        run: to show, read anew since any step of it has run.
        answers: re-scores that are not stored.
        durable: whether what is sent shall outlive a power cut at once; see `store.opened`.

    Returns:
        Keys of iterations, then names of re-scores.

    Raises:
        TrackingError: if the store is away, busy or refuses.
    """
    chains = read_chains(run)
    if not chains:
        return []
    with opened(run.params.tracking.experiment, durable) as store:
        sender = _Sender(store, run)
        views.save(store.client, store.experiment_id, chains)
        with experiment_kept(store):
            return sender.send(chains, [*rescore_runs.stored_answers(run), *answers])


def first_page(run: Run) -> str:
    """What to open below the address of the server: the runs with their evaluation; empty while nothing is there.

    The store is opened in any case: a server cannot show one that does not open.

    Raises:
        TrackingError: if the store is away, busy or refuses.
    """
    keys = (BASE_KEY, *run.params.every_iteration)
    evaluated = any(run.has_metrics("evaluate_policy", key) for key in keys)
    with opened(run.params.tracking.experiment) as store:
        return views.link(store.experiment_id, views.RUNS) if evaluated else ""


def start_anew(run: Run) -> Path | None:
    """Takes all runs of this project out of the store; `bring_up_to_date` then sends them again from disk.

    Only if there is something to send: otherwise the store would be empty afterwards.

    Returns:
        Where the project's own store lies now; None if there was none, and for another server, where the runs are
        deleted.

    Raises:
        ArtifactError: if no finished iteration is on disk; the store is as it was.
        TrackingError: if the store is away, busy or refuses.
    """
    if not read_chains(run):
        raise ArtifactError(NOTHING_TO_SEND, GET)
    if is_default():
        return set_aside()
    with opened(run.params.tracking.experiment) as store:
        for each in list(chain_runs.all_runs(store)):
            if chain_runs.KIND in each.data.tags:
                iteration_runs.remove(store, each)
    return None


class _Sender:
    """One pass over all chains.

    A chain that goes on where a parent run ends extends it. One whose iterations changed forks: a new parent run
    carries all its steps, and the old one is marked. Iterations that both share are shown under the new one.
    """

    def __init__(self, store: TrackingStore, run: Run) -> None:
        self.store = store
        self.run = run
        self.runs = chain_runs.chain_runs(store)
        self.sent: list[str] = []
        self._run_ids: dict[str, str] = {}

    def send(self, chains: Sequence[FinishedChain], answers: Sequence[Answers]) -> list[str]:
        shown = []
        for chain in chains:
            run = self._run_of(chain)
            run.expected |= chain.contents
            shown.append((chain, run))
        for chain, run in shown:
            self._mark_superseded(chain, run, [run for _, run in shown])
        for chain, run in shown:
            again = run.superseded
            for step in chain.steps:
                if again or step.key not in run.contents:
                    self._send_step(step, run)
            chain_runs.extend(self.store, run, chain, self._iteration_runs(run, chain))
            if again:
                chain_runs.revive(self.store, run)
        for asked in answers:
            lacking = [rescore_runs.send(self.store, run, chain, asked) for chain, run in shown]
            if any(lacking):
                self.sent.append(asked.name)
        replays.send(self.store, shown, self.run.md5s)
        return self.sent

    def _iteration_runs(self, run: ChainRun, chain: FinishedChain) -> dict[str, str]:
        """Ids of the iterations' runs that the description links to; looked up only if it is to change."""
        if not run.lacks(chain):
            return {}
        found = {step.key: self._run_ids.get(step.content) for step in shown_steps(chain)}
        for step in shown_steps(chain):
            if found[step.key] is None and (known := iteration_runs.find(self.store, step)):
                found[step.key] = known.info.run_id
        return {key: run_id for key, run_id in found.items() if run_id}

    def _run_of(self, chain: FinishedChain) -> ChainRun:
        """The parent run that shows the chain or that it goes on from, else a new one."""
        holding = [run for run in self.runs if run.contains(chain)]
        if holding:
            return min(holding, key=lambda run: (run.line != self.store.line, run.superseded))
        own = [run for run in self.runs if run.line == self.store.line and run.begins(chain)]
        if own:
            return max(own, key=lambda run: (not run.superseded, len(run.contents)))
        run = chain_runs.create(self.store, chain)
        self.runs.append(run)
        return run

    def _mark_superseded(
        self, chain: FinishedChain, run: ChainRun, current: Sequence[ChainRun]
    ) -> None:
        for other in self.runs:
            mine = other.line == self.store.line and not other.superseded
            if mine and other not in current and other.contradicts(chain):
                chain_runs.supersede(self.store, other, run)

    def _send_step(self, step: FinishedIteration, run: ChainRun) -> None:
        found = iteration_runs.find(self.store, step)
        if found is not None and found.info.status != "FINISHED":
            iteration_runs.remove(self.store, found)
            found = None
        if found is None:
            self._run_ids[step.content] = iteration_runs.create(self.store, self.run, step, run)
            self.sent.append(step.key)
        elif not self._is_shown(found.data.tags[chain_runs.PARENT]):
            iteration_runs.move(self.store, found, run)

    def _is_shown(self, run_id: str) -> bool:
        """Whether a parent run is there and not superseded."""
        return any(run.run_id == run_id and not run.superseded for run in self.runs)
