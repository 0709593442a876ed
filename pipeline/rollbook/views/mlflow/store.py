"""Where the MLflow store is, and how it is opened.

By default one SQLite file of the main project, `mlflow/mlflow.db`. DVC runs queued experiments in a copy of the
project and sets DVC_ROOT to the main one (dvc/repo/experiments/queue/base.py), so that all runs meet in one store.
MLFLOW_TRACKING_URI, if set, wins.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollbook.core.errors import ArtifactError, RollbookError, StoreError, TrackingError
from rollbook.core.framework_imports import import_mlflow
from rollbook.core.process import exclusive
from rollbook.core.scratch import SCRATCH

if TYPE_CHECKING:
    from mlflow.tracing.client import TracingClient
    from mlflow.tracking import MlflowClient

FOLDER = "mlflow"
REPLACED = "replaced"
"""Folder, beside the store, of those that `rollbook track --rebuild` replaced: `1`, `2`, …, the last the newest."""


@dataclass(frozen=True)
class TrackingStore:
    """An open store.

    Attributes:
        client: of runs, models and artifacts.
        traces: of spans and assessments.
        experiment_id: where this project's runs are.
        line: which working copy writes: `workspace`, or the name of a DVC experiment that runs elsewhere.
    """

    client: MlflowClient
    traces: TracingClient
    experiment_id: str
    line: str


def project_root() -> Path:
    """The main project: what DVC says, else the nearest folder upwards that DVC knows, else the current one."""
    if root := os.environ.get("DVC_ROOT"):
        return Path(root).resolve()
    here = Path.cwd().resolve()
    return next((folder for folder in (here, *here.parents) if (folder / ".dvc").is_dir()), here)


def tracking_uri() -> str:
    """Address of the store."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{_database()}"


def artifact_folder() -> Path:
    """Where the default store keeps files."""
    return project_root() / FOLDER / "artifacts"


def is_default() -> bool:
    """Whether the store is the project's own."""
    return not os.environ.get("MLFLOW_TRACKING_URI")


def exists() -> bool:
    """Whether there is a store, or the address of one; opening it would make one."""
    return not is_default() or _database().exists()


@contextlib.contextmanager
def opened(experiment: str, durable: bool = True) -> Iterator[TrackingStore]:
    """Opens the store, makes it and the experiment if need be, and keeps other writers of this machine out.

    Two processes that create a SQLite store at once break each other, hence the lock. Whoever holds it may be making a
    store or sending hundreds of iterations, so it is waited for as long as it writes to the default store.

    Args:
        experiment: name.
        durable: False: the default store does not wait for the disk, which takes half the time. A killed process
            loses nothing, a power cut may damage the store: for one that is being made anew.

    Raises:
        StoreError: if the project's own store cannot be opened.
        TrackingError: if the store is away, busy or refuses.
    """
    with _reported():
        if is_default():
            import_mlflow()  # not under the lock, others wait for it
        with _lock():
            if is_default():
                artifact_folder().mkdir(parents=True, exist_ok=True)
            with contextlib.nullcontext() if durable or not is_default() else _not_synchronous():
                with _reported(StoreError if is_default() else TrackingError):
                    store = _connected(experiment)
                yield store


@contextlib.contextmanager
def experiment_kept(store: TrackingStore) -> Iterator[None]:
    """Inside, the experiment is read once: MLflow reads it and its tags anew for every trace, run and model it makes.

    Whatever changes the experiment belongs before it.
    """
    reader = store.traces.store
    reader.get_experiment = functools.cache(reader.get_experiment)
    try:
        yield
    finally:
        del reader.get_experiment  # the method of its class is back


def set_aside() -> Path | None:
    """Moves the default store out of the way, beside those that were moved before: none is ever deleted.

    What cannot be made again may be in any of them, and a rebuild that was killed leaves half a store behind.

    Returns:
        Where it is now; None if there is none.
    """
    with _reported(), _lock():
        if not _database().exists():
            return None
        replaced = project_root() / FOLDER / REPLACED
        replaced.mkdir(exist_ok=True)
        taken = [int(each.name) for each in replaced.iterdir() if each.name.isdecimal()]
        place = replaced / str(max(taken, default=0) + 1)
        place.mkdir()
        for item in sorted((project_root() / FOLDER).iterdir()):
            if item.name != REPLACED:
                item.rename(place / item.name)
        return place


def _connected(experiment: str) -> TrackingStore:
    from mlflow.tracing.client import TracingClient
    from mlflow.tracking import MlflowClient

    from rollbook.views.mlflow.descriptions import NOTE, experiment_text

    uri = tracking_uri()
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    known = client.get_experiment_by_name(experiment)
    if known is None:
        location = str(artifact_folder()) if is_default() else None
        tags = {"mlflow.experimentKind": "custom_model_development"}
        identity = client.create_experiment(experiment, artifact_location=location, tags=tags)
        client.set_experiment_tag(identity, NOTE, experiment_text(identity))
    elif known.lifecycle_stage != "active":
        raise TrackingError(
            f"tracking.experiment: {experiment!r} was deleted in MLflow",
            "restore it there, or give tracking.experiment another name",
        )
    else:
        identity = known.experiment_id
    return TrackingStore(client, TracingClient(uri), identity, _line())


def _line() -> str:
    """The name of a DVC experiment that runs outside the main project, else `workspace`."""
    elsewhere = Path.cwd().resolve() != project_root()
    return os.environ.get("DVC_EXP_NAME", Path.cwd().name) if elsewhere else "workspace"


def _database() -> Path:
    return project_root() / FOLDER / "mlflow.db"


@contextlib.contextmanager
def _not_synchronous() -> Iterator[None]:
    """SQLite leaves it to the system when its pages reach the disk; connections are MLflow's, hence the event."""
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    def set_up(connection: Any, _: object) -> None:
        connection.execute("PRAGMA synchronous = OFF")

    event.listen(Engine, "connect", set_up)
    try:
        yield
    finally:
        event.remove(Engine, "connect", set_up)


@contextlib.contextmanager
def _lock() -> Iterator[None]:
    with contextlib.ExitStack() as held:
        try:
            file = project_root() / SCRATCH / "locks" / "mlflow.lock"
            database = _database()
            written = (database, database.with_name(f"{database.name}-journal"))
            held.enter_context(exclusive(file, "writing to MLflow", written))
        except ArtifactError as error:
            raise TrackingError(error.message, error.hint) from None
        yield


@contextlib.contextmanager
def _reported(kind: type[TrackingError] = TrackingError) -> Iterator[None]:
    """Turns whatever MLflow, its database or its HTTP client raises into one error that names the store."""
    try:
        yield
    except RollbookError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        hint = "once it is there, `rollbook track` sends what it lacks"
        if is_default():
            hint = "`rollbook track --rebuild` makes a new one from what is on disk, and keeps this"
        raise kind(f"MLflow store {tracking_uri()}: {reason}", hint) from error
