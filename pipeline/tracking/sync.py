"""Brings the MLflow store up to date with the artifacts, or makes it anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.config import Params
from pipeline.lean_imports import without
from pipeline.sealed import recorded_md5s
from pipeline.tracking.chains import Chain, read_chains
from pipeline.tracking.finished import Step
from pipeline.tracking.store import Store, is_default, opened, set_aside

with without("pandas"):  # mlflow does without it, and is imported half a second sooner
    from pipeline.tracking import chain_runs, iteration_runs, rescore_runs
    from pipeline.tracking.chain_runs import ChainRun
    from pipeline.tracking.rescore_runs import Answers


def bring_up_to_date(params: Params, answers: Sequence[Answers] = ()) -> list[str]:
    """Sends every finished iteration and stored re-score that the store lacks, and what was asked just now.

    Args:
        params: of the project.
        answers: re-scores that are not stored.

    Returns:
        Keys of iterations, then names of re-scores.

    Raises:
        TrackingError: if the store is away, busy or refuses.
    """
    chains = read_chains(params)
    if not chains:
        return []
    with opened(params.tracking.experiment) as store:
        sender = _Sender(store, params, recorded_md5s())
        return sender.send(chains, [*rescore_runs.stored_answers(params), *answers])


def start_anew(params: Params) -> Path | None:
    """Takes all runs of this project out of the store; `bring_up_to_date` then sends them again from disk.

    Returns:
        Where the project's own store lies now; None for another server, where the runs are deleted.

    Raises:
        TrackingError: if the store is away, busy or refuses.
    """
    if is_default():
        return set_aside()
    with opened(params.tracking.experiment) as store:
        for run in list(chain_runs.all_runs(store)):
            if chain_runs.KIND in run.data.tags:
                iteration_runs.remove(store, run)
    return None


class _Sender:
    """One pass over all chains.

    A chain that goes on where a parent run ends extends it. One whose iterations changed forks: a new parent run
    carries all its steps, and the old one is marked. Iterations that both share are shown under the new one.
    """

    def __init__(self, store: Store, params: Params, md5s: Mapping[str, str]) -> None:
        self.store = store
        self.params = params
        self.md5s = md5s
        self.runs = chain_runs.chain_runs(store)
        self.sent: list[str] = []

    def send(self, chains: Sequence[Chain], answers: Sequence[Answers]) -> list[str]:
        shown = [(chain, self._run_of(chain)) for chain in chains]
        for chain, run in shown:
            self._mark_superseded(chain, run, [run for _, run in shown])
        for chain, run in shown:
            again = run.superseded
            for step in chain.steps:
                if again or step.key not in run.contents:
                    self._send_step(step, run)
            chain_runs.extend(self.store, run, chain)
            if again:
                chain_runs.revive(self.store, run)
        for asked in answers:
            lacking = [rescore_runs.send(self.store, run, chain, asked) for chain, run in shown]
            if any(lacking):
                self.sent.append(asked.name)
        return self.sent

    def _run_of(self, chain: Chain) -> ChainRun:
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

    def _mark_superseded(self, chain: Chain, run: ChainRun, current: Sequence[ChainRun]) -> None:
        for other in self.runs:
            mine = other.line == self.store.line and not other.superseded
            if mine and other not in current and other.contradicts(chain):
                chain_runs.supersede(self.store, other, run)

    def _send_step(self, step: Step, run: ChainRun) -> None:
        found = iteration_runs.find(self.store, step)
        if found is not None and found.info.status != "FINISHED":
            iteration_runs.remove(self.store, found)
            found = None
        if found is None:
            iteration_runs.create(self.store, step, run.run_id, self.params, self.md5s)
            self.sent.append(step.key)
        elif not self._is_shown(found.data.tags[iteration_runs.PARENT]):
            self.store.client.set_tag(found.info.run_id, iteration_runs.PARENT, run.run_id)

    def _is_shown(self, run_id: str) -> bool:
        """Whether a parent run is there and not superseded."""
        return any(run.run_id == run_id and not run.superseded for run in self.runs)
