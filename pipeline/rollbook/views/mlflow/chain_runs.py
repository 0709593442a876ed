"""Parent runs: one per chain of policies, with curves by iteration."""

from __future__ import annotations

import math
import os
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.tracking import MlflowClient

from rollbook.project.report import EVALUATION
from rollbook.project.run.curves import TRAINING
from rollbook.settings.recipe_words import stretches
from rollbook.views.mlflow.chains import FinishedChain, FinishedIteration, Metrics
from rollbook.views.mlflow.descriptions import NOTE, chain_text
from rollbook.views.mlflow.names import flattened, shortened, valid_name
from rollbook.views.mlflow.store import TrackingStore

KIND = "rollbook.kind"
LINE = "rollbook.line"
ORIGIN = "rollbook.origin"
CHAIN = "rollbook.chain"
PARENT = "mlflow.parentRunId"
NAME = "chain"
"""Tag of runs inside a parent run: its name, as MLflow's lists show no parent."""
NO_LONGER = "–"
"""Value of a setting that an iteration does not have and the one before it had."""
BASE = "rollbook.base_logged"
REPLAYS = "rollbook.replays"
SUPERSEDED = "rollbook.superseded"
SUPERSEDED_MARK = " (superseded)"
"""What the name of such a run ends with."""
FIRST = tuple(TRAINING.values())
"""Metrics that stand above all but the evaluation."""
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
        name: as MLflow's lists show it.
        superseded: whether an iteration of it has changed since.
        base_logged: whether the base policy is on its curves.
        replays: hash of the verdicts of replays that it and its iterations show.
        expected: what will be on its curves when the chains of this pass are sent.
    """

    run_id: str
    origin: str
    line: str
    name: str
    contents: dict[str, str] = field(default_factory=dict)
    superseded: bool = False
    base_logged: bool = False
    replays: str = ""
    expected: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, run: Run) -> ChainRun:
        tags = run.data.tags
        return cls(
            run_id=run.info.run_id,
            origin=tags.get(ORIGIN, ""),
            line=tags.get(LINE, ""),
            name=run.info.run_name or "",
            contents=_read_contents(tags),
            superseded=SUPERSEDED in tags,
            base_logged=BASE in tags,
            replays=tags.get(REPLAYS, ""),
        )

    def contains(self, chain: FinishedChain) -> bool:
        """Whether all finished steps of `chain` are on its curves, or will be."""
        return self.origin == chain.origin and chain.contents.items() <= self._holds.items()

    def begins(self, chain: FinishedChain) -> bool:
        """Whether `chain` goes on from where this run ends."""
        return self.origin == chain.origin and self._holds.items() <= chain.contents.items()

    @property
    def _holds(self) -> dict[str, str]:
        return self.contents | self.expected

    def lacks(self, chain: FinishedChain) -> bool:
        """Whether `chain` has a point that is not on its curves."""
        return bool(chain.base and not self.base_logged) or any(
            key not in self.contents for key in chain.contents
        )

    def contradicts(self, chain: FinishedChain) -> bool:
        """Whether it began like `chain`, but an iteration of the same key has come out differently since."""
        return self.origin == chain.origin and any(
            self.contents.get(key, content) != content for key, content in chain.contents.items()
        )


def chain_runs(store: TrackingStore) -> list[ChainRun]:
    """All parent runs of the experiment, oldest first."""
    runs = all_runs(store, f"tags.`{KIND}` = 'chain'")
    return [ChainRun.of(run) for run in sorted(runs, key=lambda run: run.info.start_time)]


def all_runs(store: TrackingStore, condition: str = "") -> Iterator[Run]:
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


def create(store: TrackingStore, chain: FinishedChain) -> ChainRun:
    """A new parent run without points."""
    first = chain.steps[0]
    tags = {
        "recipe": _recipes(chain),
        "seed": str(chain.seed),
        "dvc.experiment": os.environ.get("DVC_EXP_NAME", ""),
        "mlflow.source.name": "rollbook",
        "mlflow.source.git.commit": first.environment.git.commit,
        KIND: "chain",
        ORIGIN: chain.origin,
        LINE: store.line,
    }
    tags = {name: value for name, value in tags.items() if value}
    name = _name(chain)
    run = store.client.create_run(store.experiment_id, first.started_ms, tags, name)
    held = {**chain.settings, "seed": chain.seed}
    log(store.client, run.info.run_id, params=flattened(held))
    return ChainRun(run.info.run_id, chain.origin, store.line, name)


def extend(
    store: TrackingStore, run: ChainRun, chain: FinishedChain, runs: Mapping[str, str]
) -> None:
    """Adds the points that the run lacks. What it holds is written down last, so a run cut short is continued.

    Args:
        store: to write to.
        run: that `chain` goes on from.
        chain: to show.
        runs: ids of the runs of its iterations, by key.
    """
    if not run.lacks(chain):
        return
    lacking = [step for step in chain.steps if step.key not in run.contents]
    points = [point for step in lacking for point in step_metrics(step)]
    tags: dict[str, str] = {}
    if chain.base and not run.base_logged:
        points += metrics_at(chain.base, 0, chain.steps[0].started_ms)
        tags[BASE] = "true"
    contents = run.contents | {step.key: step.content for step in lacking}
    tags |= {"recipe": _recipes(chain), **_written_contents(contents)}
    tags[NOTE] = chain_text(chain, store.experiment_id, runs)
    log(store.client, run.run_id, points, _settings_from(chain, run.contents), tags)
    _rename(store, run, _name(chain))
    store.client.set_terminated(run.run_id, "FINISHED", chain.steps[-1].finished_ms)
    run.contents, run.base_logged = contents, run.base_logged or BASE in tags


def supersede(store: TrackingStore, run: ChainRun, by: ChainRun) -> None:
    """Marks a run whose iterations changed; its numbers stay as they are."""
    store.client.set_tag(run.run_id, SUPERSEDED, by.run_id)
    _rename(store, run, run.name + SUPERSEDED_MARK)
    run.superseded = True


def revive(store: TrackingStore, run: ChainRun) -> None:
    """Takes the mark away: the change was undone."""
    _rename(store, run, run.name.removesuffix(SUPERSEDED_MARK))
    store.client.delete_tag(run.run_id, SUPERSEDED)
    run.superseded = False


def _name(chain: FinishedChain) -> str:
    """Recipes, seed, and what tells chains of the same recipes apart: letters of a branch, a DVC experiment."""
    letters = chain.tip.rstrip("0123456789")
    known = ("i", *(step.recipe for step in chain.steps))
    marks = ["" if letters in known else letters, os.environ.get("DVC_EXP_NAME", "")]
    recipes = " → ".join(dict.fromkeys(step.recipe for step in chain.steps))
    return " · ".join([f"{recipes}, seed {chain.seed}", *(mark for mark in marks if mark)])


def _recipes(chain: FinishedChain) -> str:
    """The recipe; of several, each with the iterations it made, by their place in the chain."""
    pieces = stretches(chain.steps, lambda step: step.recipe)
    if len(pieces) == 1:
        return chain.steps[0].recipe
    return ", ".join(
        f"{first.recipe} ({first.number}{f'–{rest[-1].number}' if rest else ''})"
        for first, *rest in pieces
    )


def _settings_from(chain: FinishedChain, sent: Container[str]) -> dict[str, str]:
    """Settings of recipes as parameters that say from which iteration on they hold: `from i0004/update_policy.epochs`.

    MLflow's parameters never change and a chain's settings may, so those of an iteration are what differs from the
    one before it.

    Args:
        chain: whose recipes they are.
        sent: keys of iterations whose parameters the run has.
    """
    found: dict[str, str] = {}
    before: dict[str, str] = {}
    for step in chain.steps:
        # what stands beside the sections, such as the counts of draws, is no setting
        sections = {key: each for key, each in step.settings.items() if isinstance(each, Mapping)}
        now = flattened(sections)
        if step.key not in sent:
            changed = {name: value for name, value in now.items() if before.get(name) != value}
            gone = dict.fromkeys(before.keys() - now.keys(), NO_LONGER)
            found |= {
                valid_name(f"from {step.key}/{name}"): value
                for name, value in sorted((changed | gone).items())
            }
        before = now
    return found


def _rename(store: TrackingStore, run: ChainRun, name: str) -> None:
    """Changes the name of a parent run, here and on the runs inside it."""
    if name == run.name:
        return
    store.client.update_run(run.run_id, name=name)
    for inside in list(all_runs(store, f"tags.`{PARENT}` = '{run.run_id}'")):
        store.client.set_tag(inside.info.run_id, NAME, name)
    run.name = name


def step_metrics(step: FinishedIteration) -> list[Metric]:
    """Points of one iteration, for the parent's curves and for the iteration's own run."""
    return metrics_at({**step.metrics, **step.costs}, step.number, step.finished_ms)


def metrics_at(metrics: Metrics, number: int, timestamp_ms: int) -> list[Metric]:
    """Metrics as points at a step, what is asked for first at the top: MLflow lists them as they came.

    Numbers that are not finite break MLflow's pages; they are counted instead.
    """
    ordered = sorted(metrics.items(), key=lambda item: _rank(item[0]))
    finite = {valid_name(name): value for name, value in ordered if value is not None}
    finite["non_finite"] = float(sum(value is None for value in metrics.values()))
    return [Metric(name, float(value), timestamp_ms, number) for name, value in finite.items()]


def _rank(name: str) -> int:
    """Means of the evaluation, its greedy answers, the rest of it; then what reports show; then all else."""
    if match := EVALUATION.fullmatch(name):
        return -4 if match["what"] == "mean" else -3 if match["greedy_set"] else -2
    if name.startswith("eval/"):
        return -1
    return FIRST.index(name) if name in FIRST else len(FIRST)


def log(
    client: MlflowClient,
    run_id: str,
    points: Sequence[Metric] = (),
    params: Mapping[str, str] | None = None,
    tags: Mapping[str, str] | None = None,
) -> None:
    """Logs in as few calls as MLflow's limits allow; tags come last, with the parameters.

    A parameter cannot be taken back: one sent before the tags that say what a run holds would stand in the way if
    the process ended between them and the iteration came out differently.
    """
    settings = [Param(name, value) for name, value in (params or {}).items()]
    labels = [RunTag(name, shortened(value)) for name, value in (tags or {}).items()]
    metric_calls = math.ceil(len(points) / POINTS_PER_CALL)
    param_calls = math.ceil(len(settings) / PARAMS_PER_CALL)
    calls = max(metric_calls, param_calls, 1)
    for call in range(calls):
        batch = max(call - calls + param_calls, -1) * PARAMS_PER_CALL
        client.log_batch(
            run_id,
            metrics=points[call * POINTS_PER_CALL : (call + 1) * POINTS_PER_CALL],
            params=settings[batch : batch + PARAMS_PER_CALL] if batch >= 0 else (),
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
