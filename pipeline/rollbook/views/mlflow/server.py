"""MLflow's web server, in the process that has MLflow imported already."""

from __future__ import annotations

import functools
import importlib
import os
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import mlflow
import uvicorn  # before mlflow.server, which takes it for the sign that it serves and then guards its pages
from mlflow import server
from mlflow.cli import cli

from rollbook.core.errors import RollbookError
from rollbook.views.mlflow import locations
from rollbook.views.mlflow.access import TokenRequired

APPLICATION = "mlflow.server.fastapi_app:app"
"""What uvicorn serves for MLflow; all of its routes are below it."""
ASK_AGAIN_SECONDS = 0.1
"""Between two looks whether the server answers."""


def serve(
    uri: str,
    artifacts: str,
    host: str,
    port: int,
    token: str,
    ready: Callable[[], None],
    log: bool = False,
) -> None:
    """Serves a store until it is stopped: MLflow's own `ui` command, without the process it starts for the server.

    That process imports all of MLflow again, which takes longer than anything else between the command and the page,
    and it would ask nobody for the token. `_exec_cmd`, by which MLflow starts it, is no public name.

    Args:
        uri: address of the store.
        artifacts: folder or address of files of experiments that have none of their own.
        host: address to listen on.
        port: of the server.
        token: without which nothing is answered.
        ready: is called, once, when it answers.
        log: whether it tells of every request; else of errors alone.

    Raises:
        RollbookError: if this release of MLflow starts its server in another way.
    """
    # Jobs are MLflow's own evaluations on the server; nothing here uses them, and their workers cost seconds.
    os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
    # Its gateway to language models is not used either, and covers the page of rollouts with an offer to ask one.
    os.environ.setdefault("MLFLOW_ENABLE_AI_GATEWAY", "false")
    if not hasattr(server, "_exec_cmd"):
        raise _unknown_release("`mlflow.server._exec_cmd` is gone")
    server._exec_cmd = functools.partial(_in_this_process, token, host, port)
    options = {
        "--backend-store-uri": uri,
        "--registry-store-uri": uri,
        "--default-artifact-root": artifacts,
        "--artifacts-destination": artifacts,
        "--host": host,
        "--port": str(port),
        "--workers": "1",
        "--uvicorn-opts": f"--log-level {'info' if log else 'warning'} --no-proxy-headers",
    }
    if not log:
        warnings.simplefilter("ignore")  # of what MLflow imports: they are about its code
    threading.Thread(target=_when_it_answers, args=(host, port, ready), daemon=True).start()
    cli(["ui", *(word for option in options.items() for word in option)])


def _when_it_answers(host: str, port: int, ready: Callable[[], None]) -> None:
    """Calls `ready` when a connection is accepted: uvicorn listens when the whole application is loaded."""
    while True:
        try:
            with socket.create_connection((host, port), timeout=1):
                break
        except OSError:
            time.sleep(ASK_AGAIN_SECONDS)
    ready()


def _in_this_process(
    token: str,
    host: str,
    port: int,
    command: Sequence[str],
    *,
    extra_env: Mapping[str, str],
    **_: Any,
) -> NoReturn:
    """What MLflow would start, `python -m uvicorn …` with more in its environment, for those who have the token."""
    os.environ.update(extra_env)
    if command[-1] != APPLICATION:
        raise _unknown_release(f"it serves {command[-1]}, not {APPLICATION}")
    application = importlib.import_module(APPLICATION.partition(":")[0]).app
    locations.install()
    application.add_middleware(TokenRequired, token=token, port=port, hosts=(host,))
    uvicorn.main(command[3:], standalone_mode=False)
    sys.exit()


def _unknown_release(reason: str) -> RollbookError:
    return RollbookError(
        f"MLflow {mlflow.__version__} cannot be served safely: {reason}",
        "install mlflow 3.17, or open the store in `mlflow ui`, which every account of this machine can then read",
    )
