import socket

import pytest
from click.testing import CliRunner

from pipeline.cli.track import track
from pipeline.cli.ui import ui
from pipeline.errors import RollbookError, TrackingError
from tests.unit.tracking.project import Project


def test_track_says_what_it_sent(finished: Project) -> None:
    first = CliRunner().invoke(track, [], catch_exceptions=False)
    assert first.output.strip().endswith("mlflow.db: sent i0001, i0002, i0003")
    again = CliRunner().invoke(track, [], catch_exceptions=False)
    assert "lacked nothing" in again.output


def test_track_fails_if_the_server_is_away(
    finished: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(TrackingError):
        CliRunner().invoke(track, [], catch_exceptions=False)


def test_ui_points_to_a_server_of_the_users(
    finished: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    result = CliRunner().invoke(ui, [], catch_exceptions=False)
    assert "warning: not up to date" in result.output
    assert "the runs are at http://127.0.0.1:9" in result.output


def test_ui_refuses_a_port_in_use(finished: Project) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(RollbookError, match=f"--port {port}: .*in use") as error:
            CliRunner().invoke(ui, ["--port", str(port)], catch_exceptions=False)
    assert f"--port {port + 1}" in error.value.hint
