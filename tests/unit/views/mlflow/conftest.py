"""The project's own store in a temporary folder, and clients that look into it."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from rollbook.views.mlflow import store as stores
from tests.unit.views.mlflow.project import Project


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new store; making one takes longer than most tests here."""
    from mlflow.tracking import MlflowClient

    file = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(f"sqlite:///{file}").search_experiments()
    return file


@pytest.fixture(scope="session")
def finished_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of three iterations, all finished."""
    folder = tmp_path_factory.mktemp("finished")
    with contextlib.chdir(folder):
        Project(3).finish("i0001", "i0002", "i0003")
    return folder


@pytest.fixture(autouse=True)
def own_store(project: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No address of the user's, no DVC around: the store is the temporary project's."""
    for name in ("MLFLOW_TRACKING_URI", "DVC_ROOT", "DVC_EXP_NAME"):
        monkeypatch.delenv(name, raising=False)
    Path(stores.FOLDER).mkdir()
    shutil.copy(empty_store, stores.FOLDER)


@pytest.fixture
def finished(project: Path, finished_folder: Path) -> Project:
    """A project of three iterations, all finished."""
    shutil.copytree(finished_folder, project, dirs_exist_ok=True)
    return Project()


class Shown:
    """What the store shows."""

    def __init__(self, experiment: str = "rollbook", uri: str = "") -> None:
        from mlflow.tracking import MlflowClient

        self.client = MlflowClient(uri or stores.tracking_uri())
        found = self.client.get_experiment_by_name(experiment)
        assert found is not None
        self.experiment_id = found.experiment_id
        self.runs = self.client.search_runs([self.experiment_id], max_results=1000)

    def of_kind(self, kind: str) -> list[Any]:
        """Runs tagged `chain` or `iteration`, oldest first."""
        found = [run for run in self.runs if run.data.tags["rollbook.kind"] == kind]
        return sorted(found, key=lambda run: (run.info.start_time, run.info.run_name))

    @property
    def chains(self) -> list[Any]:
        return self.of_kind("chain")

    @property
    def iterations(self) -> dict[str, list[Any]]:
        """Iteration runs by name."""
        found: dict[str, list[Any]] = {}
        for run in self.of_kind("iteration"):
            found.setdefault(run.info.run_name, []).append(run)
        return found

    def curve(self, run: Any, name: str) -> dict[int, float]:
        """Points of a metric by step; no step has two."""
        points = self.client.get_metric_history(run.info.run_id, name)
        curve = {point.step: point.value for point in points}
        assert len(curve) == len(points)
        return curve
