from pathlib import Path

import pytest

from rollbook.core.errors import ConfigError
from rollbook.stages.track_iteration import track_iteration
from tests.unit.views.mlflow.project import Project


@pytest.fixture(autouse=True)
def finished(project: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    for name in ("MLFLOW_TRACKING_URI", "DVC_ROOT", "DVC_EXP_NAME"):
        monkeypatch.delenv(name, raising=False)
    return Project(2).finish("i0001", "i0002")


def test_an_iteration_is_sent_with_those_before_it(capsys: pytest.CaptureFixture[str]) -> None:
    track_iteration("i0002")
    assert "track_iteration@i0002: sent i0001, i0002" in capsys.readouterr().out
    track_iteration("i0002")
    assert "sent nothing new" in capsys.readouterr().out
    assert Path("mlflow/mlflow.db").exists()


def test_a_server_that_is_away_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    track_iteration("i0001")
    said = capsys.readouterr().err
    assert "warning: not tracked" in said
    assert "http://127.0.0.1:9" in said
    assert "rollbook track" in said


def test_an_unknown_iteration_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"iterations\.i0009.*did you mean"):
        track_iteration("i0009")
