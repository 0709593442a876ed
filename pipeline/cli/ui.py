"""`rollbook ui`."""

from __future__ import annotations

import gc
import socket

import click

from pipeline.errors import RollbookError
from pipeline.params import read_params
from pipeline.process import COLLECT_AFTER


@click.command()
@click.option("--port", default=5000, show_default=True, help="Port of the web server.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
def ui(port: int, host: str) -> None:
    """Show the runs in MLflow: brings the store up to date, then does what `mlflow ui` does.

    Nothing leaves this machine. With MLFLOW_TRACKING_URI set to a server, that server shows them.

    Example: rollbook ui --port 5001
    """
    gc.set_threshold(COLLECT_AFTER)  # before MLflow is imported
    from pipeline.tracking.store import artifact_folder, tracking_uri
    from pipeline.tracking.sync import bring_up_to_date, first_page

    page = ""
    try:
        params = read_params()
        bring_up_to_date(params)
        page = first_page(params)
    except RollbookError as error:
        click.echo(f"warning: not up to date: {error}", err=True)
    uri = tracking_uri()
    if uri.startswith(("http://", "https://", "databricks")):
        click.echo(f"the runs are at {uri}{page and '/'}{page}")
        return
    _refuse_busy_port(host, port)
    from pipeline.tracking.server import serve

    click.echo(f"MLflow: http://{host}:{port}/{page} (Ctrl-C stops it)")
    serve(uri, str(artifact_folder()), host, port)


def _refuse_busy_port(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise RollbookError(
                f"--port {port}: {error.strerror or error}", f"try `rollbook ui --port {port + 1}`"
            ) from None
