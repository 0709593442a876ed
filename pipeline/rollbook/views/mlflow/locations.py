"""Where files that MLflow's server reads, writes and deletes may lie: in MLflow's folders of the project.

MLflow takes the place of an experiment's files from whoever makes the experiment, and follows links below it. Both are
refused where all its routes meet: in the repositories by which it reaches files (runs, models, model versions, traces
and the `mlflow-artifacts` proxy), and, when a place is written to the database, there.

Links are looked for, then the file is opened: whoever can exchange a folder for a link in between writes to the store
as its owner anyway.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mlflow.entities import FileInfo
from mlflow.exceptions import MlflowException
from mlflow.prompt.constants import _PROMPT_SOURCE_PLACEHOLDERS
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
from mlflow.store.artifact import artifact_repository_registry as repositories
from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository
from mlflow.tracing.utils.artifact_utils import TRACE_DATA_FILE_NAME
from mlflow.utils.file_utils import local_file_uri_to_path
from mlflow.utils.mlflow_tags import MLFLOW_ARTIFACT_LOCATION
from mlflow.utils.uri import validate_path_is_safe

from rollbook.views.mlflow.store import FOLDER, project_root, tracking_uri

OF_MLFLOW = (f"{FOLDER}/artifacts", "mlruns", "mlartifacts")
"""Folders of the project: the store's own, and those that MLflow makes where nothing is said. Not the database's, nor
one that code or git's hooks lie in: whoever gets the link is to see a run, not to change the project."""
COLUMNS = (
    "artifact_location",
    "artifact_uri",
    "storage_location",
    "default_artifact_root",
    "trace_archival_location",
)
"""Of MLflow's database, whichever table they are in, that say where files are."""
LOCAL = ("", "file")
"""Schemes of places on this machine."""
INDIRECT = ("runs", "models")
"""Schemes of places that are found through another one, which is looked at in its turn."""
PROXIED = "mlflow-artifacts"
"""Scheme of places below the folder that the server keeps for its clients."""


class FilesOfTheProject(LocalArtifactRepository):
    """Files below one place of the project, without links, pipes or devices among them.

    Raises:
        MlflowException: for a place outside, and for a path that leads through a link.
    """

    def __init__(self, artifact_uri: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(artifact_uri, *args, **kwargs)
        self._artifact_dir = str(refuse_outside(Path(self._artifact_dir), artifact_uri))

    def get_local_path(self, artifact_path: str) -> str:
        return str(self._looked_at(Path(super().get_local_path(artifact_path))))

    def list_artifacts(self, path: str | None = None) -> list[FileInfo]:
        self._refuse_links(path)
        return [each for each in super().list_artifacts(path) if not self._is_strange(each.path)]

    def log_artifacts(self, local_dir: str, artifact_path: str | None = None) -> None:
        self._refuse_links(artifact_path)
        for folder, folders, files in os.walk(local_dir):
            inside = Path(artifact_path or "", os.path.relpath(folder, local_dir))
            for name in (*folders, *files):
                self._refuse_links(inside / name)
        super().log_artifacts(local_dir, artifact_path)

    def delete_artifacts(self, artifact_path: str | None = None) -> None:
        place = self._looked_at(Path(self._artifact_dir, artifact_path or ""))
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)

    def download_trace_data(self) -> dict[str, Any]:
        self._refuse_links(TRACE_DATA_FILE_NAME)
        return dict(super().download_trace_data())

    def _download_file(self, remote_file_path: str, local_path: str) -> None:
        self._refuse_links(validate_path_is_safe(remote_file_path))
        super()._download_file(remote_file_path, local_path)

    def _get_or_create_artifact_dir(self, artifact_path: str | None = None) -> str:
        self._refuse_links(artifact_path)
        return str(super()._get_or_create_artifact_dir(artifact_path))

    def _get_destination_artifact_path(
        self, artifact_file_name: str, artifact_path: str | None = None
    ) -> tuple[str, str]:
        folder, file = super()._get_destination_artifact_path(artifact_file_name, artifact_path)
        return folder, str(self._looked_at(Path(file)))

    def _refuse_links(self, path: str | Path | None) -> None:
        self._looked_at(Path(self._artifact_dir, path or ""))

    def _looked_at(self, path: Path) -> Path:
        place = _written_out(path)
        if not place.is_relative_to(self._artifact_dir):
            raise _refused(f"{path}: outside {self._artifact_dir}")
        refuse_outside(place, str(path))
        if place.exists() and not place.is_file() and not place.is_dir():
            raise _refused(f"{path}: neither a file nor a folder")
        return place

    def _is_strange(self, path: str) -> bool:
        try:
            self._refuse_links(path)
        except MlflowException:
            return True
        return False


def install() -> None:
    """From now on this process, which serves, reaches files of the project alone."""
    from sqlalchemy import event
    from sqlalchemy.orm import Session

    known: dict[str, Any] = repositories.get_registered_artifact_repositories()
    for scheme in [each for each in known if each not in INDIRECT]:
        del known[scheme]
    for scheme in LOCAL:
        known[scheme] = FilesOfTheProject
    event.listen(Session, "before_flush", _refuse_in_database)


def refuse_outside(path: Path, named: str) -> Path:
    """Where a place is in the project, by the project's own path: links that lead to the project are its owner's.

    Args:
        path: absolute, or relative to the current folder; may not exist yet.
        named: as the request or the database has it, for the message.

    Raises:
        MlflowException: if it is elsewhere or a link in the project leads to it.
    """
    place = _written_out(path)
    if "\0" in str(place):
        raise _refused("a place of files has no NUL in its name")
    try:
        for above in place.parents:
            inside = place.relative_to(above)
            for anchor, folder in _allowed():
                if inside.is_relative_to(folder) and above.samefile(anchor):
                    return _without_links(anchor, inside, named)
    except (OSError, ValueError) as error:
        raise _refused(f"{named}: {error}") from None
    raise _refused(f"{named}: outside {', '.join(OF_MLFLOW)} of the project")


def _written_out(path: Path) -> Path:
    """Absolute, without `..`; links are left in it, unlike by `Path.resolve`, and so can be found."""
    return Path(os.path.abspath(path))  # noqa: PTH100


def _without_links(anchor: Path, inside: Path, named: str) -> Path:
    place = anchor
    for part in inside.parts:
        place = place / part
        if place.is_symlink():
            raise _refused(f"{named}: {place} is a link, and none is followed")
    return place


def _allowed() -> list[tuple[Path, str]]:
    """Folders that MLflow may use, as (folder, path in it); one is a store of files that the user names."""
    allowed = [(project_root().resolve(), each) for each in OF_MLFLOW]
    if _scheme(tracking_uri()) in LOCAL:
        store = Path(local_file_uri_to_path(tracking_uri())).absolute()
        allowed.append((store.parent, store.name))
    return allowed


def _scheme(place: str) -> str:
    return urlsplit(place).scheme.lower()


def _refuse_in_database(session: Any, *_: object) -> None:
    """Looks at every place that is about to be written to MLflow's database."""
    for place in _changed_places((*session.new, *session.dirty)):
        scheme = _scheme(place)
        if scheme in LOCAL:
            refuse_outside(Path(local_file_uri_to_path(place)), place)
        elif scheme == PROXIED:
            parts = urlsplit(place)
            if parts.netloc or ".." in Path(local_file_uri_to_path(parts.path)).parts:
                raise _refused(f"{place}: outside the project")
        elif scheme not in INDIRECT:
            raise _refused(f"{place}: outside the project; `rollbook ui` uses no {scheme}:")


def _changed_places(objects: Iterable[Any]) -> Iterator[str]:
    from sqlalchemy import inspect

    for each in objects:
        names = [*COLUMNS]
        if getattr(each, "key", None) == MLFLOW_ARTIFACT_LOCATION:
            names.append("value")
        state = inspect(each)
        for name in names:
            if name in state.attrs and state.attrs[name].history.has_changes():
                place = getattr(each, name)
                if place and place not in _PROMPT_SOURCE_PLACEHOLDERS:
                    yield place


def _refused(reason: str) -> MlflowException:
    return MlflowException(reason, error_code=INVALID_PARAMETER_VALUE)
