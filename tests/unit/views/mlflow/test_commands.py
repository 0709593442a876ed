import shutil
import socket
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from rollbook.cli.page import page
from rollbook.cli.report import report
from rollbook.cli.track import track
from rollbook.cli.ui import ui
from rollbook.core.errors import RollbookError, StoreError, TrackingError
from rollbook.views.mlflow.store import FOLDER
from tests.processes import free_port
from tests.unit.views.mlflow.project import Project


def test_track_says_what_it_sent(finished: Project) -> None:
    first = CliRunner().invoke(track, [], catch_exceptions=False)
    assert first.output.strip().endswith("mlflow.db: sent i0001, i0002, i0003")
    again = CliRunner().invoke(track, [], catch_exceptions=False)
    assert "lacked nothing" in again.output


def test_track_tells_having_nothing_to_send_from_lacking_nothing(finished: Project) -> None:
    CliRunner().invoke(track, [], catch_exceptions=False)
    shutil.rmtree("artifacts")
    said = CliRunner().invoke(track, [], catch_exceptions=False).output
    assert "nothing to send; `rollbook pull`" in said and "lacked" not in said


def _garbage() -> None:
    Path(FOLDER, "mlflow.db").write_text("garbage")


def _of_another_version() -> None:
    with sqlite3.connect(Path(FOLDER, "mlflow.db")) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'ffffffffffff'")


@pytest.mark.parametrize("damage", [_garbage, _of_another_version])
@pytest.mark.parametrize(
    ("command", "finished_keys"), [(track, ["i0001"]), (ui, ["i0001"]), (ui, [])]
)
def test_a_store_that_does_not_open_is_not_served(
    damage: Callable[[], None],
    command: click.Command,
    finished_keys: Sequence[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rollbook.views.mlflow.server.serve", lambda *_: pytest.fail("served"))
    Project(2).finish(*finished_keys)
    damage()
    where = ["--port", str(free_port())] if command is ui else []
    with pytest.raises(StoreError, match=r"mlflow\.db") as error:
        CliRunner().invoke(command, where, catch_exceptions=False)
    assert "`rollbook track --rebuild`" in error.value.hint


@pytest.mark.parametrize("command", [page, report, track, ui])
def test_the_wrong_folder_is_said(command: click.Command, monkeypatch: pytest.MonkeyPatch) -> None:
    Project(1)
    Path("sub").mkdir()
    above = Path.cwd()
    monkeypatch.chdir("sub")
    with pytest.raises(RollbookError, match=r"no params\.yaml") as error:
        CliRunner().invoke(command, [], catch_exceptions=False)
    assert f"cd {above}" in error.value.hint


@pytest.mark.parametrize("port", ["-1", "0", "99999"])
def test_ui_refuses_what_is_no_port(port: str) -> None:
    result = CliRunner().invoke(ui, ["--port", port])
    assert result.exit_code == 2 and "not in the range 1<=x<=65535" in result.output


@pytest.mark.parametrize("host", ["nonsense.invalid", "192.0.2.1"])
def test_ui_names_the_host_that_it_cannot_listen_on(finished: Project, host: str) -> None:
    """One that has no address, and an address of no machine (RFC 5737)."""
    with pytest.raises(RollbookError, match=f"--host {host}: "):
        CliRunner().invoke(ui, ["--host", host], catch_exceptions=False)
    assert not Path(FOLDER, "artifacts").exists()  # said before the store is brought up to date


def test_ui_listens_on_addresses_of_either_kind(
    finished: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = []

    def answering(
        uri: str, artifacts: str, host: str, port: int, token: str, ready: Any, log: bool
    ) -> None:
        served.append((host, port))
        ready()

    monkeypatch.setattr("rollbook.views.mlflow.server.serve", answering)
    try:
        port = free_port(socket.AF_INET6, "::1")
    except OSError:
        pytest.skip("this machine has no IPv6")
    said = CliRunner().invoke(ui, ["--host", "::1", "--port", str(port)], catch_exceptions=False)
    assert f"http://[::1]:{port}/" in said.output
    assert served == [("::1", port)]


def test_the_link_is_printed_when_the_server_answers() -> None:
    from rollbook.views.mlflow.server import _when_it_answers

    answered = threading.Event()
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))  # bound, and not listening: nothing answers yet
        where = ("127.0.0.1", server.getsockname()[1], answered.set)
        threading.Thread(target=_when_it_answers, args=where, daemon=True).start()
        assert not answered.wait(0.3)
        server.listen()
        assert answered.wait(5)


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
