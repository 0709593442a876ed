"""Child runs: one per finished iteration, found again by the hash of its content."""

from __future__ import annotations

import math
import os
import tempfile
from pathlib import Path

from mlflow.entities import Metric
from mlflow.entities import Run as MlflowRun

from rollbook.project.run.run import Run
from rollbook.tables.artifacts import path_of
from rollbook.views.mlflow.chain_runs import (
    KIND,
    NAME,
    PARENT,
    ChainRun,
    all_runs,
    log,
    step_metrics,
)
from rollbook.views.mlflow.chains import FinishedIteration
from rollbook.views.mlflow.descriptions import NOTE, step_text
from rollbook.views.mlflow.links import Artifact, artifacts_of, dataset_of, link_policy
from rollbook.views.mlflow.names import flattened
from rollbook.views.mlflow.rollout_view import groups, is_on_disk, readable, sample
from rollbook.views.mlflow.store import TrackingStore
from rollbook.views.mlflow.traces import send_traces

CONTENT = "rollbook.content"
STEP_COLUMNS_LEFT_OUT = ("iteration", "epoch", "optimizer_step")


def find(store: TrackingStore, step: FinishedIteration) -> MlflowRun | None:
    """The run of this iteration's content, finished or not."""
    condition = f"tags.`{KIND}` = 'iteration' and tags.`{CONTENT}` = '{step.content}'"
    return next(all_runs(store, condition), None)


def create(store: TrackingStore, run: Run, step: FinishedIteration, chain: ChainRun) -> str:
    """Sends everything about one iteration. The run is `FINISHED` only when all of it has arrived."""
    artifacts = artifacts_of(run, step)
    kind = {KIND: "iteration", CONTENT: step.content, PARENT: chain.run_id, NAME: chain.name}
    tags = {**_tags(step, artifacts), **kind}
    run_id = store.client.create_run(
        store.experiment_id, step.started_ms, tags, step.key
    ).info.run_id
    # before its numbers: MLflow reads all of a run to learn where its files go
    _send_rollouts(store, run_id, run, step)
    model_id = link_policy(store, run_id, step, artifacts)
    judged = next(item for item in artifacts if item.path == path_of("data", "evaluation"))
    points = [
        Metric(
            point.key,
            point.value,
            point.timestamp,
            point.step,
            model_id=model_id,
            dataset_name=judged.name,
            dataset_digest=judged.md5,
        )
        if point.key.startswith("eval/")
        else point
        for point in step_metrics(step)
    ]
    log(store.client, run_id, [*points, *_optimizer_steps(run, step)], flattened(step.settings))
    store.client.log_inputs(run_id, [dataset_of(run, artifact) for artifact in artifacts])
    store.client.set_terminated(run_id, "FINISHED", step.finished_ms)
    return run_id


def move(store: TrackingStore, run: MlflowRun, chain: ChainRun) -> None:
    """Shows an iteration's run inside another chain's."""
    for name, value in ((PARENT, chain.run_id), (NAME, chain.name)):
        store.client.set_tag(run.info.run_id, name, value)


def remove(store: TrackingStore, run: MlflowRun) -> None:
    """Removes a run with its traces and its model, so that it can be sent anew."""
    traces = store.client.search_traces(
        locations=[store.experiment_id], run_id=run.info.run_id, include_spans=False
    )
    if traces:
        ids = [trace.info.trace_id for trace in traces]
        store.client.delete_traces(store.experiment_id, trace_ids=ids)
    for model in run.outputs.model_outputs if run.outputs else []:
        store.client.delete_logged_model(model.model_id)
    store.client.delete_run(run.info.run_id)


def _tags(step: FinishedIteration, artifacts: list[Artifact]) -> dict[str, str]:
    ran_in, git = step.environment, step.environment.git
    contents = {artifact.path: artifact.content for artifact in artifacts}
    tags = {
        "recipe": step.recipe,
        "iteration": step.key,
        "previous": step.previous,
        "policy_digest.in": contents[path_of("policies", step.previous)],
        "policy_digest.out": contents[path_of("policies", step.key)],
        "commit": git.commit,
        "dirty": str(git.dirty).lower(),
        "patch_sha256": git.patch_sha256,
        "dvc.experiment": os.environ.get("DVC_EXP_NAME", ""),
        "host": ran_in.host,
        "mlflow.source.name": "rollbook",
        "mlflow.source.git.commit": git.commit,
        NOTE: step_text(step),
    }
    tags |= {f"md5.{item.kind}": item.md5 for item in artifacts if item.made}
    tags |= {f"version.{name}": version for name, version in ran_in.packages.items()}
    return {name: value for name, value in tags.items() if value}


def _optimizer_steps(run: Run, step: FinishedIteration) -> list[Metric]:
    """The update from within: its curves go by optimizer step."""
    stored = run.find_table("optimizer_steps", step.key)
    if stored is None:
        return []
    table = stored.all()
    places = table.column("optimizer_step").to_pylist()
    return [
        Metric(f"optimizer_steps/{name}", float(value), step.finished_ms, place)
        for name in table.column_names
        if name not in STEP_COLUMNS_LEFT_OUT
        for place, value in zip(places, table.column(name).to_pylist(), strict=True)
        if value is not None and math.isfinite(value)
    ]


def _send_rollouts(store: TrackingStore, run_id: str, run: Run, step: FinishedIteration) -> None:
    """All rollouts as a Parquet file, the groups as one that MLflow shows, and some rollouts as traces."""
    if not is_on_disk(run, step.key):
        return
    rollouts = readable(run, step.key)
    with tempfile.TemporaryDirectory() as folder:
        rollouts.drop("messages").write_parquet(Path(folder) / f"{step.key}.parquet")
        groups(rollouts).write_csv(Path(folder) / f"{step.key}.csv")
        store.client.log_artifacts(run_id, folder, "groups")
    rows = sample(rollouts, run.params.tracking.traces)
    send_traces(store, run_id, rows, step.finished_ms)
