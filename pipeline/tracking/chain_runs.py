"""Parent runs: one per chain of policies, with curves by iteration."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.tracking import MlflowClient

from pipeline.tracking.chains import Chain
from pipeline.tracking.descriptions import chain_text
from pipeline.tracking.finished import Metrics, Step
from pipeline.tracking.names import flattened, shortened, valid_name
from pipeline.tracking.store import Store

KIND = "rollbook.kind"
LINE = "rollbook.line"
ORIGIN = "rollbook.origin"
CHAIN = "rollbook.chain"
BASE = "rollbook.base_logged"
SUPERSEDED = "rollbook.superseded"
TAG_LENGTH = 4000
POINTS_PER_CALL = 800
PARAMS_PER_CALL = 100
"""MLflow takes 1,000 entities in a call, of them 100 parameters and 100 tags."""


@dataclass
class ChainRun:
    """A parent run as it is in the store.

    Attributes:
        contents: content hash of every iteration on its curves, by key.
        line: the working copy it belongs to.
        superseded: whether an iteration of it has changed since.
        base_logged: whether the base policy is on its curves.
    """

    run_id: str
    origin: str
    line: str
    contents: dict[str, str] = field(default_factory=dict)
    superseded: bool = False
    base_logged: bool = False

    @classmethod
    def of(cls, run: Run) -> ChainRun:
        tags = run.data.tags
        return cls(
            run_id=run.info.run_id,
            origin=tags.get(ORIGIN, ""),
            line=tags.get(LINE, ""),
            contents=_read_contents(tags),
            superseded=SUPERSEDED in tags,
            base_logged=BASE in tags,
        )

    def contains(self, chain: Chain) -> bool:
        """Whether all finished steps of `chain` are on its curves."""
        return self.origin == chain.origin and chain.contents.items() <= self.contents.items()

    def begins(self, chain: Chain) -> bool:
        """Whether `chain` goes on from where this run ends."""
        return self.origin == chain.origin and self.contents.items() <= chain.contents.items()

    def contradicts(self, chain: Chain) -> bool:
        """Whether it began like `chain`, but an iteration of the same key has come out differently since."""
        return self.origin == chain.origin and any(
            self.contents.get(key, content) != content for key, content in chain.contents.items()
        )


def chain_runs(store: Store) -> list[ChainRun]:
    """All parent runs of the experiment, oldest first."""
    runs = all_runs(store, f"tags.`{KIND}` = 'chain'")
    return [ChainRun.of(run) for run in sorted(runs, key=lambda run: run.info.start_time)]


def all_runs(store: Store, condition: str = "") -> Iterator[Run]:
    """Runs of the experiment that fulfil a search condition, page by page."""
    token: str | None = None
    while True:
        page = store.client.search_runs(
            [store.experiment_id], condition, max_results=1000, page_token=token
        )
        yield from page
        token = page.token
        if not token:
            return


def create(store: Store, chain: Chain) -> ChainRun:
    """A new parent run without points."""
    first = chain.steps[0]
    experiment = os.environ.get("DVC_EXP_NAME", "")
    tags = {
        KIND: "chain",
        ORIGIN: chain.origin,
        LINE: store.line,
        "seed": str(chain.seed),
        "dvc.experiment": experiment,
        "mlflow.source.name": "rollbook",
        "mlflow.source.git.commit": (first.environment.get("git") or {}).get("commit", ""),
    }
    tags = {name: value for name, value in tags.items() if value}
    letters = chain.tip.rstrip("0123456789")
    marks = [letters if letters != "i" else "", experiment]
    name = " · ".join([f"{first.recipe}, seed {chain.seed}", *(mark for mark in marks if mark)])
    run = store.client.create_run(store.experiment_id, first.started_ms, tags, name)
    log(store.client, run.info.run_id, params=flattened({**chain.settings, **first.settings}))
    return ChainRun(run.info.run_id, chain.origin, store.line)


def extend(store: Store, run: ChainRun, chain: Chain) -> None:
    """Adds the points that the run lacks. What it holds is written down last, so a run cut short is continued."""
    lacking = [step for step in chain.steps if step.key not in run.contents]
    points: list[Metric] = []
    tags: dict[str, str] = {}
    if chain.base and not run.base_logged:
        points += metrics_at(chain.base, 0, chain.steps[0].started_ms)
        tags[BASE] = "true"
    for step in lacking:
        points += step_metrics(step)
    if not points:
        return
    contents = run.contents | {step.key: step.content for step in lacking}
    tags |= _written_contents(contents)
    tags["mlflow.note.content"] = chain_text(chain)
    log(store.client, run.run_id, points, tags=tags)
    store.client.set_terminated(run.run_id, "FINISHED", chain.steps[-1].finished_ms)
    run.contents, run.base_logged = contents, run.base_logged or BASE in tags


def supersede(store: Store, run: ChainRun, by: ChainRun) -> None:
    """Marks a run whose iterations changed; it stays as it is."""
    store.client.set_tag(run.run_id, SUPERSEDED, by.run_id)
    run.superseded = True


def revive(store: Store, run: ChainRun) -> None:
    """Takes the mark away: the change was undone."""
    store.client.delete_tag(run.run_id, SUPERSEDED)
    run.superseded = False


def step_metrics(step: Step) -> list[Metric]:
    """Points of one iteration, for the parent's curves and for the iteration's own run."""
    return metrics_at({**step.metrics, **step.costs}, step.number, step.finished_ms)


def metrics_at(metrics: Metrics, number: int, timestamp_ms: int) -> list[Metric]:
    """Metrics as points at a step. Numbers that are not finite break MLflow's pages; they are counted instead."""
    finite = {valid_name(name): value for name, value in metrics.items() if value is not None}
    finite["non_finite"] = float(sum(value is None for value in metrics.values()))
    return [Metric(name, float(value), timestamp_ms, number) for name, value in finite.items()]


def log(
    client: MlflowClient,
    run_id: str,
    points: Sequence[Metric] = (),
    params: Mapping[str, str] | None = None,
    tags: Mapping[str, str] | None = None,
) -> None:
    """Logs in as few calls as MLflow's limits allow; tags come last."""
    settings = [Param(name, value) for name, value in (params or {}).items()]
    labels = [RunTag(name, shortened(value)) for name, value in (tags or {}).items()]
    calls = max(
        math.ceil(len(points) / POINTS_PER_CALL), math.ceil(len(settings) / PARAMS_PER_CALL), 1
    )
    for call in range(calls):
        client.log_batch(
            run_id,
            metrics=points[call * POINTS_PER_CALL : (call + 1) * POINTS_PER_CALL],
            params=settings[call * PARAMS_PER_CALL : (call + 1) * PARAMS_PER_CALL],
            tags=labels if call == calls - 1 else (),
        )


def _written_contents(contents: Mapping[str, str]) -> dict[str, str]:
    """Content hashes as tags, in pieces that fit."""
    pieces = [""]
    for key, content in contents.items():
        entry = f"{key}:{content} "
        if len(pieces[-1]) + len(entry) > TAG_LENGTH:
            pieces.append("")
        pieces[-1] += entry
    return {f"{CHAIN}.{place}": piece.strip() for place, piece in enumerate(pieces)}


def _read_contents(tags: Mapping[str, str]) -> dict[str, str]:
    pieces = (value for name, value in tags.items() if name.startswith(f"{CHAIN}."))
    entries = (entry.partition(":") for piece in pieces for entry in piece.split())
    return {key: content for key, _, content in entries}
