"""`rollbook ui`."""

from __future__ import annotations

import errno
import gc
import socket

import click

from rollbook.cli.console import refuse_elsewhere
from rollbook.core.errors import RollbookError, StoreError
from rollbook.core.process import COLLECT_AFTER

LAST_PORT = 65535


@click.command()
@click.option(
    "--port",
    type=click.IntRange(1, LAST_PORT),
    default=5000,
    show_default=True,
    help="Port of the web server.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--verbose", "-v", is_flag=True, help="Print what the server logs of requests.")
def ui(port: int, host: str, verbose: bool) -> None:
    """Show the runs in MLflow: brings the store up to date, does what `mlflow ui` does, and prints the link.

    Nothing leaves this machine. The link carries a token of this start, without which nobody is answered, other
    accounts of the machine included; clients need the two variables printed below it. With MLFLOW_TRACKING_URI set to
    a server, that server shows the runs.

    Example: rollbook ui --port 5001
    """
    gc.set_threshold(COLLECT_AFTER)  # before MLflow is imported
    refuse_elsewhere()
    from rollbook.project.run.run import Run
    from rollbook.views.mlflow.store import artifact_folder, tracking_uri
    from rollbook.views.mlflow.sync import bring_up_to_date, first_page

    uri = tracking_uri()
    is_served = not uri.startswith(("http://", "https://", "databricks"))
    if is_served:
        _refuse_busy_port(host, port)
    page = ""
    try:
        run = Run()
        bring_up_to_date(run)
        page = first_page(run)
    except StoreError:
        raise  # a server could not open it either
    except RollbookError as error:
        click.echo(f"warning: not up to date: {error}", err=True)
    if not is_served:
        click.echo(f"the runs are at {uri}{page and '/'}{page}")
        return
    from rollbook.views.mlflow.access import PARAMETER, new_token
    from rollbook.views.mlflow.server import serve

    click.echo("MLflow starts; its link follows when it answers", err=True)
    shown, token = f"[{host}]" if ":" in host else host, new_token()
    link = (
        f"MLflow: http://{shown}:{port}/?{PARAMETER}={token}{page} (Ctrl-C stops it)\n"
        f"clients: MLFLOW_TRACKING_URI=http://{shown}:{port} MLFLOW_TRACKING_TOKEN={token}"
    )
    serve(uri, str(artifact_folder()), host, port, token, lambda: click.echo(link), verbose)


def _refuse_busy_port(host: str, port: int) -> None:
    """Raises RollbookError if nothing can listen there, before the store is brought up to date, which takes longer."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
    except (OSError, UnicodeError) as error:
        raise _not_here(host, error) from None
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise _not_here(host, error) from None
            hint = "choose another one above 1023"
            if error.errno == errno.EADDRINUSE and port < LAST_PORT:
                hint = f"try `rollbook ui --port {port + 1}`"
            raise RollbookError(f"--port {port}: {error.strerror or error}", hint) from None


def _not_here(host: str, error: Exception) -> RollbookError:
    reason = getattr(error, "strerror", None) or error
    return RollbookError(
        f"--host {host}: {reason}", "name an address of this machine, such as 127.0.0.1 or 0.0.0.0"
    )
